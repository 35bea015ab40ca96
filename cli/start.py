"""The way into the `benchwright` command: a verb that runs things asks the engine that is up."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

HANDED_OVER = ("run",)
"""Verbs that the local engine's child carries out: their imports take longer than their work."""

ELSEWHERE = ("--deployment", "--help", "-h")
"""Options with which the local engine has nothing to do."""


def main() -> NoReturn:
    """Carry out the command of this process, and leave with its exit code."""
    argv = sys.argv[1:]
    try:
        code = hand_over(argv)
        if code is None:
            from cli.main import call

            code = call(argv)
    except KeyboardInterrupt:  # before the command, or the engine's child, could take it up
        from benchwright.errors import Interrupted
        from cli.output import print_error

        print_error(Interrupted("interrupted"), as_json="--json" in argv)
        code = Interrupted.exit_code
    sys.exit(code)


def hand_over(argv: list[str]) -> int | None:
    """The exit code of a command that the engine carried out; None where this process has to."""
    if not argv or argv[0] not in HANDED_OVER or os.environ.get("PREFECT_API_URL"):
        return None
    if any(word.partition("=")[0] in ELSEWHERE for word in argv):
        return None
    home = _home(argv)
    # os.path.isdir says False, and raises nothing, for what lies below a folder that is closed.
    if not os.path.isdir(home / "engine"):  # noqa: PTH112
        return None
    from deployments.local.quick import talk

    return talk(home, argv)


def _home(argv: list[str]) -> Path:
    """Where the engine would be. The command itself has the last word on where its records go."""
    from benchwright.record.home import DEFAULT_HOME, HOME_VARIABLE

    home = os.environ.get(HOME_VARIABLE) or DEFAULT_HOME
    for word, after in zip(argv, [*argv[1:], ""], strict=True):
        if word == "--home" and after:
            home = after
        elif word.startswith("--home="):
            home = word.partition("=")[2]
    return Path(home)


if __name__ == "__main__":
    main()
