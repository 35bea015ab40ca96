"""Programs that are copied to a target host and run there: standard library only, Python >= 3.7."""
