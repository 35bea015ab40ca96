"""Served models: is the answer still right (`accuracy`), and how fast does it come (`speed`).

A target is an OpenAI-compatible server on a host. Both domains are the graph probe -> evaluate ->
validate; `runner` runs the same three in one call.
"""
