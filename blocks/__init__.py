"""Configured connections: hosts, credentials, providers, policies."""
