"""When to believe it: statistics, the two gates, verdicts, reliability tags."""
