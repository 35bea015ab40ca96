"""What would run: refusals, hits and misses, challenges, cost; from the records, before a start."""
