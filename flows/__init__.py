"""Prefect flows and the compiler."""
