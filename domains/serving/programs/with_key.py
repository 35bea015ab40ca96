"""Runs a Python program with `--api-key` among its arguments, as it sees them itself.

    BENCHWRIGHT_ENDPOINT_KEY=... python with_key.py PROGRAM ARGUMENT...

The list of arguments that a process was started with can be read by every user of its machine; its
environment by its own user alone.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import os
import runpy
import sys


def main():
    program = sys.argv[1]
    sys.argv = sys.argv[1:] + ["--api-key", os.environ.pop("BENCHWRIGHT_ENDPOINT_KEY")]
    sys.path[0] = os.path.dirname(program)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
