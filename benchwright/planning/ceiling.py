"""What a run may spend, checked while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from benchwright.errors import Where
from benchwright.record.consent import CeilingPassed, Consent

HOUR_S = 3600.0

LEAST_S = 0.1
"""What buys less than this (seconds) buys nothing: a launch that is ended when the money is has
spent some milliseconds less than all of it."""


@dataclass(slots=True)
class Ceiling:
    """What a run may spend, and what it has spent.

    Attributes:
        consent: What was approved; None for a run that the policy lets start unasked.
        max_usd: The ceiling.
        usd_per_hour: What an hour costs at most.
        started: Monotonic time from which it costs.
        known: Gives what was measured, launch by launch; None where it isn't.
        before: What of that an earlier process of the run has spent, and noted.
    """

    consent: Consent | None
    max_usd: float
    usd_per_hour: float
    started: float
    known: Callable[[], float | None]
    before: float = 0.0

    def spent(self) -> float:
        """US dollars so far: what was measured, else the hours at the price that was quoted."""
        known = self.known()
        if known is not None:
            return known
        return (time.monotonic() - self.started) / HOUR_S * self.usd_per_hour

    def check(self) -> None:
        """End the run once it has spent what was approved. Raises CeilingPassed."""
        spent = self.spent()
        least = LEAST_S / HOUR_S * max(self.usd_per_hour, 0.0)
        if self.max_usd > 0 and spent >= self.max_usd - least:
            who = f", approved by {self.consent.who}" if self.consent else ""
            raise CeilingPassed(
                f"the run has spent {spent:.2f} USD of the {self.max_usd:.2f} USD that it may{who}",
                where=Where(key="cost"),
                hint="what was finished is kept: benchwright resume RUN --max-cost USD",
            )

    def seconds_left(self) -> float | None:
        """How long it may go on; None: as long as it likes."""
        if self.usd_per_hour <= 0 or self.max_usd <= 0:
            return None
        return max(0.0, (self.max_usd - self.spent()) / self.usd_per_hour * HOUR_S)
