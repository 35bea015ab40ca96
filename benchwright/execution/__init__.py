"""How a stage runs: supervisor, memory guard, process tree, accelerators, reading metrics."""
