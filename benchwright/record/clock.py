"""Wall-clock times as the record writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """The wall clock with the machine's own time zone."""
    return datetime.now(UTC).astimezone()


def text(moment: datetime) -> str:
    """ISO 8601 with time zone, to the millisecond."""
    return moment.isoformat(timespec="milliseconds")


def now_text() -> str:
    """The wall clock as text."""
    return text(now())


def from_epoch(seconds: float) -> str:
    """A time of the file system as text."""
    return text(datetime.fromtimestamp(seconds, UTC).astimezone())
