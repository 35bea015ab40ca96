"""What can be benchmarked."""
