"""This project measured, against its peers."""
