"""The text files of a record, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchwright.errors import BadInput, Where


def read(path: Path) -> str:
    """The text of a file.

    Raises:
        BadInput: It is missing, can't be read, or isn't UTF-8.
    """
    try:
        return path.read_text("utf-8")
    except FileNotFoundError as error:
        raise BadInput("is missing", where=Where(path)) from error
    except OSError as error:
        raise BadInput(f"can't be read: {error.strerror}", where=Where(path)) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadInput("holds bytes that aren't UTF-8", where=Where(path, line)) from error


def read_lossy(path: Path) -> str:
    """The text of a file; bytes that aren't UTF-8 become replacement characters.

    Raises:
        BadInput: It is missing or can't be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise BadInput(f"can't be read: {error.strerror}", where=Where(path)) from error


def dump_line(data: Mapping[str, Any]) -> str:
    """Plain data as one line of JSON, floats exact. Raises ValueError for NaN and infinity."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def load_lines(path: Path) -> tuple[list[tuple[int, dict[str, Any]]], str]:
    """The mappings of a JSON-lines file, each with its line number from 1.

    Returns:
        The mappings, and what follows the last newline: the torn beginning of a line whose
        writer was killed; empty where the file ends well. A missing file has no lines.

    Raises:
        BadInput: A whole line can't be parsed; file and line are named.
    """
    if not path.exists():
        return [], ""
    *lines, torn = read_lossy(path).split("\n")
    rows: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line, parse_constant=_refuse_constant)
        except ValueError as error:
            raise BadInput(f"can't be read as JSON: {error}", where=Where(path, number)) from error
        if not isinstance(row, dict):
            raise BadInput("holds no JSON object", where=Where(path, number))
        rows.append((number, row))
    return rows, torn


def _refuse_constant(name: str) -> None:
    """NaN and infinity are no JSON and no measurement. Raises ValueError."""
    raise ValueError(f"{name} is not a finite number")
