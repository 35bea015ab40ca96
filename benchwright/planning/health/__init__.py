"""Whether a machine and a benchmark home are fit to measure: small checks, each with advice."""
