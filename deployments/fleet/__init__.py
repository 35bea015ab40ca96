"""Many machines: one Prefect server, and a worker on each host."""
