"""What a server is told, and the local server and engine."""
