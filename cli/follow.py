"""Following a run from a terminal: progress with the time left, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from cli.output import console, seconds

if TYPE_CHECKING:
    from benchwright.planning.plan import Plan
    from benchwright.record.store import RunFolder
    from deployments.local.client import Submission

RUN_DONE = "run_done"
"""The event of a run whose record and report are written."""

POLL_S = 0.1
"""How often the folder of a run without an engine is looked at."""

PLAIN_EVERY_S = 5.0
"""Where standard error is no terminal, progress is a line at most this often."""


class Progress:
    """One line on a terminal that says what is going on; a line now and then in a log."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._status: Any = None
        self._expected = 0
        self._done = 0
        self._spans: list[float] = []
        self._last_line: float | None = None
        self._told: set[str] = set()

    def __enter__(self) -> Progress:
        if self._terminal:
            self._status = console(sys.stderr).status("")
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the line away, for a question; what is said next brings it back."""
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Show what is going on now."""
        if self._status is not None:
            from rich.markup import escape

            self._status.update(escape(text))
            self._status.start()
        else:
            click.echo(text, err=True)

    def note(self, text: str) -> None:
        """Leave a line that stays: a build, a failure."""
        if self._status is not None:
            self._status.console.print(text, markup=False)
        else:
            click.echo(text, err=True)

    def expect(self, plan: Plan) -> None:
        """Know how many replicates there will be."""
        measures = sum(stage.kind.value == "measure" for stage in plan.config.stages)
        self._expected = len(plan.slots) * measures

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Show one event of a run."""
        kind = event.get("kind")
        if kind == "prep_started":
            self.say(f"{event['stage']}, {event['arm']}")
        elif kind == "prep_done":
            how = "from the cache" if event["cached"] else f"built in {seconds(event['wall_s'])}"
            why = "" if event["cached"] else f" ({event['reason']})" if event["reason"] else ""
            self.note(f"{event['stage']}, {event['arm']}: {how}{why}")
        elif kind == "waiting":
            self._now_and_then(f"waiting for {event['for']}")
        elif kind == "approval_wanted":
            self._approval(event)
        elif kind == "step_started":
            self.say(str(event["stage"]))
        elif kind == "step_progress":
            self.say(f"{event['stage']}: {event['text']}")
        elif kind == "replicate_done":
            self._replicate(event)
        elif kind == "judging" and self._terminal:
            self.say("judging, and writing the report")
        elif kind == "run_started" and event.get("expected"):
            self._expected = int(event["expected"])

    def _approval(self, event: Mapping[str, Any]) -> None:
        """Say that a person is waited for, and ask the one at this terminal."""
        from cli.consent import answer_event, can_ask

        self.note(f"waiting for {event['for']}: {event['page']}")
        if can_ask():
            self.stop()
            answer_event(event)

    def _replicate(self, event: Mapping[str, Any]) -> None:
        self._done += 1
        if not event["ok"]:
            self.note(f"{event['stage']}, {event['arm']}: failed: {event['error']}")
            return  # how long it took says nothing on how long the others will
        self._spans.append(float(event["wall_s"]))
        for drift in event.get("drift", ()):
            told = f"{event['stage']}, {event['arm']}: {drift}; the run will be UNRELIABLE"
            if told not in self._told:
                self._told.add(told)
                self.note(told)
        left = ""
        if self._expected:
            remaining = max(self._expected - self._done, 0)
            left = f" of {self._expected}, about {seconds(remaining * self._mean())} left"
        self._now_and_then(f"measuring: {self._done}{left}")

    def _now_and_then(self, text: str) -> None:
        """Show what changes often: in a log only a line in a while."""
        now = time.monotonic()
        if self._terminal or self._last_line is None or now - self._last_line >= PLAIN_EVERY_S:
            self._last_line = now
            self.say(text)

    def _mean(self) -> float:
        return sum(self._spans) / len(self._spans)


def follow(folder: RunFolder, submission: Submission, progress: Progress) -> int:
    """Follow a run until its record is whole: what Prefect is told then, nobody waits for.

    Ctrl-C cancels it once: what was started ends, and the run is recorded as interrupted.

    Returns:
        The run's exit code.
    """
    while True:
        try:
            ended = submission.follow(progress.on_event, last=RUN_DONE)
            break
        except KeyboardInterrupt:
            progress.note("ending what was started ...")
            submission.cancel()
    if ended.lost:  # the engine was killed; the run goes on without it
        try:
            wait_for_end(folder, progress, submission.position)
        except KeyboardInterrupt:
            from deployments.local.orphan import end_without_engine

            progress.note("ending what was started ...")
            end_without_engine(folder)
    return folder.settle().exit_code


def wait_for_end(folder: RunFolder, progress: Progress, offset: int = 0) -> None:
    """Follow a run that no engine can speak for, by what it writes and by its lock.

    Args:
        folder: The run's folder.
        progress: Where its events are shown.
        offset: Bytes of its events that were shown already.
    """
    while True:
        alive = folder.alive()
        events, offset = folder.events(offset)
        for event in events:
            progress.on_event(event)
        if not alive:
            return
        time.sleep(POLL_S)
