"""What several tests need: real parts that a machine may lack."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def require(present: bool, reason: str) -> None:
    """Skip the test on a user's machine, and fail it in CI, where a real part is missing."""
    if present:
        return
    if os.environ.get("BENCHWRIGHT_CI"):
        pytest.fail(f"CI lacks a part that this test needs: {reason}")
    pytest.skip(reason)


def shared_folder(*parts: str) -> Path:
    """A folder of the real inputs that BENCHWRIGHT_SHARED names; skips where there is none."""
    root = os.environ.get("BENCHWRIGHT_SHARED", "")
    path = Path(root, *parts) if root else Path()
    require(
        bool(root) and path.exists(), "BENCHWRIGHT_SHARED names no folder with " + "/".join(parts)
    )
    return path
