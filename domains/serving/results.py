"""What an evaluation left, as it was read; nothing is judged here."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from domains.serving.probe import Probe, Said
from domains.serving.request import Record

_EXCEPTION = re.compile(r"^\s*[\w.]*(Error|Exception)\b.*:")


def telling_line(log: str) -> str:
    """The line of a failed program's log that says why: the last exception, else the last line.

    Programs have words of their own after an exception, such as where to report it.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    named = [line for line in lines if _EXCEPTION.match(line)]
    return (named or lines or [""])[-1][-300:]


class DatasetResult(Record):
    """What one dataset's evaluation left, as it was read; nothing is judged here.

    Attributes:
        name, adapter: The set, and the evalscope benchmark that scores it.
        set_version: The set's own version, its revision in a hub, or empty.
        data_digest: SHA-256 of its files where they were a folder.
        prompt_digest: Of the templates and shots around the questions.
        evaluator, evaluator_version, evaluation_version: What scored it.
        command: The command that ran, as a shell would take it.
        work_dir: Its folder on the host.
        artifacts: Its folder on this machine, relative to the run's.
        started: Wall clock of the host at its start, seconds since 1970.
        report_written: Likewise of its report's last change; None where there is none.
        exit_code, ended_by: How the command ended.
        problem: Why the report can't be read; empty where it can.
        metric, score, num, requested, succeeded, errored, incomplete: From its report.
        expected: Number of samples that the request itself asks for; None where it can't be told.
        items: Outcomes by item id, from the reviews.
        review_problem: Why those can't be read.
        answers, empty, truncated: Counts over the answers; None where they weren't collected.
        answered_by: Names that the answers came under, with counts.
        latency_s, output_tok_s, input_tokens, output_tokens: Means over the requests.
        effective: Values that the evaluator says it used, under our parameters' names.
        server_after: Light probe after it.
        notes: Deviations.
    """

    name: str
    adapter: str
    set_version: str = ""
    data_digest: str = ""
    prompt_digest: str = ""
    evaluator: str = "evalscope"
    evaluator_version: str = ""
    evaluation_version: str = ""
    command: str
    work_dir: str
    artifacts: str = ""
    started: float
    report_written: float | None = None
    exit_code: int | None = None
    ended_by: str = ""
    log_tail: str = ""
    problem: str = ""
    metric: str = ""
    score: float | None = None
    num: int | None = None
    requested: int | None = None
    succeeded: int | None = None
    errored: int | None = None
    incomplete: bool | None = None
    expected: int | None = None
    items: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    review_problem: str = ""
    answers: int | None = None
    empty: int | None = None
    truncated: int | None = None
    answered_by: dict[str, int] = Field(default_factory=dict)
    latency_s: float | None = None
    output_tok_s: float | None = None
    input_tokens: float | None = None
    output_tokens: float | None = None
    effective: dict[str, Any] = Field(default_factory=dict)
    server_after: Probe | None = None
    notes: tuple[str, ...] = ()


class Evaluation(Record):
    """All datasets of a request.

    Attributes:
        work_dir: The work directory on the host.
        evaluator, evaluator_version: What ran.
        datasets: One result each, in the order asked.
        failures: Why it could not go on; empty for one that came to its end.
        notes: Deviations.
    """

    work_dir: str = ""
    evaluator: str = ""
    evaluator_version: str = ""
    datasets: tuple[DatasetResult, ...] = ()
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Progress(Record):
    """How far a dataset or a load is: `done` of `total` (None: not known)."""

    dataset: str
    done: int
    total: int | None
    unit: str = "samples"

    def __str__(self) -> str:
        of = f" of {self.total}" if self.total else ""
        return f"{self.dataset}: {self.done}{of} {self.unit}"


@dataclass(slots=True)
class Reporter:
    """Where progress goes: lines for a person, counts for a progress bar."""

    say: Said = lambda _: None
    progress: Callable[[Progress], None] = lambda _: None
