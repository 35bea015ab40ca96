"""Prefect tasks, each a thin wrapper around one engine call."""
