"""Looking for a better value: strategies and the loop guard."""
