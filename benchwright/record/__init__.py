"""What is remembered: runs, index, lessons, risks."""
