"""The folders of runs: created, written while they run, read, and settled when they were lost."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchwright.errors import BadInput, BenchwrightError, Where
from benchwright.record import clock, form
from benchwright.record.audit import audit, current_tag, flags
from benchwright.record.documents import dump_line, load_lines, read
from benchwright.record.files import (
    PRIVATE,
    append_line,
    exclusively,
    keep_back,
    sync_folder,
    write_atomically,
    write_once,
)
from benchwright.record.form import Launch
from benchwright.record.home import Layout
from benchwright.record.index import update_index
from benchwright.record.liveness import RunLock, holder, is_held
from benchwright.record.run import RunRecord, Status
from benchwright.record.run_id import check_run_id, new_run_id, run_ids
from benchwright.record.waiting import read_waiting
from benchwright.spec.source import dump_yaml

if TYPE_CHECKING:
    from benchwright.execution.sample import Sample
    from benchwright.identity.fingerprint import Fingerprint
    from benchwright.judgement.verdict import ArmSummary, Finding
    from benchwright.judgement.view import RunView
    from benchwright.spec.manifest import Manifest
    from benchwright.spec.model import BenchmarkConfig

LOST = "the process that ran it ended without a word"
UNCLAIMED = "no process took it up"

UNCLAIMED_AFTER_S = 30.0
"""Seconds that a created run may wait for the process that runs it before it counts as lost."""

_LEFT_AFTER_S = 3600.0
"""Age from which a folder of a run that is being created was left by a process that died."""

RESERVE_BYTES = 1_000_000
"""Space that a run keeps back on its disk for its last words: results, their row of the index, a
report in Markdown. They are 10 to 100 kB, the index of 5,000 runs 700 kB."""

_DRAWS = 100
"""Run ids drawn before giving up; of 16 million, two in an instant already are rare."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run: the record itself.

    Attributes:
        home: The benchmark home.
        run_id: The run's id, which is the folder's name.
    """

    home: Path
    run_id: str

    @property
    def path(self) -> Path:
        """The folder."""
        return Layout(self.home).runs / self.run_id

    @property
    def config_file(self) -> Path:
        """The frozen configuration."""
        return self.path / "config.yaml"

    @property
    def logs(self) -> Path:
        """What the stages printed; for its owner's eyes only."""
        return self.path / "logs"

    @property
    def artifacts(self) -> Path:
        """What the stages left for people."""
        return self.path / "artifacts"

    @property
    def report(self) -> Path:
        """The Markdown report; there once the run ended."""
        return self.path / "report.md"

    @property
    def report_html(self) -> Path:
        """The HTML report; there once the run ended."""
        return self.path / "report.html"

    @property
    def _results(self) -> Path:
        return self.path / "results.yaml"

    @property
    def _shadow(self) -> Path:
        return self.path / ".results.json"

    @property
    def _samples(self) -> Path:
        return self.path / "samples.jsonl"

    @property
    def _events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def _alive(self) -> Path:
        return self.path / ".alive"

    @property
    def _reserve(self) -> Path:
        return self.path / ".reserve"

    # Writing

    def append_sample(self, sample: Sample) -> None:
        """Record a finished replicate; once this returns, it survives `kill -9`.

        Raises:
            BenchwrightError: The disk is full; the replicates before it stay readable.
        """
        append_line(self._samples, dump_line(form.write_sample(sample)))

    def event(self, event: Mapping[str, Any]) -> None:
        """Tell the terminals that follow what happened; `t` is added where it is missing."""
        row = {"t": clock.now_text(), **event}
        append_line(self._events, json.dumps(row, ensure_ascii=False, default=str), durable=False)

    def write_results(self, record: RunRecord) -> None:
        """Record where the run stands, and bring its row of the index up to date.

        Replicates and launch facts aren't written: they were when they came to be.

        Raises:
            BenchwrightError: The disk is full; the earlier results stay readable.
        """
        if record.view.run_id != self.run_id:
            raise BadInput(f"the record of {record.view.run_id} doesn't belong in {self.path}")
        data = form.results_data(record)
        text = dump_yaml(data)
        with self._writing():
            if record.status is not Status.IN_PROGRESS:
                self._reserve.unlink(missing_ok=True)
            write_atomically(self._results, text)
            if record.status is not Status.IN_PROGRESS:
                # Later runs read it many times. One that is missing or of another text is no loss.
                with suppress(BenchwrightError):
                    write_atomically(self._shadow, form.write_shadow(text, data), durable=False)
            if record.status is Status.IN_PROGRESS and not self.alive():
                # It is to go on in another process: who ran it before has no say any more.
                self._alive.unlink(missing_ok=True)
                keep_back(self._reserve, RESERVE_BYTES)
        update_index(self.home, self.run_id)

    def write_report(self, name: str, text: str) -> Path:
        """Write a report beside the results, and return its path."""
        path = self.path / name
        write_atomically(path, text, durable=False)
        return path

    # Reading

    def read(self, *, samples: bool = True) -> RunRecord:
        """The whole record.

        Args:
            samples: Whether to read the replicates; without them the view has none.

        Raises:
            BadInput: A file is missing, damaged or of a newer version; names file and line.
        """
        from benchwright.identity.fingerprint import Fingerprint
        from benchwright.judgement.verdict import Tag
        from benchwright.judgement.view import RunView

        shadow = ""
        with suppress(OSError, ValueError):
            shadow = self._shadow.read_text("utf-8")
        results = form.read_results(read(self._results), self._results, shadow)
        launch_file = self.path / "launch.json"
        launch = form.read_launch(read(launch_file), launch_file)
        config = self.config()
        replicates, torn = self._read_samples() if samples else ((), ())
        lowered = audit(self.path)
        tag = current_tag(self.path, results.judgement.tag if results.judgement else "")
        view = RunView(
            run_id=self.run_id,
            created=launch.created,
            config=config,
            config_hash=launch.config_hash,
            manifest=launch.manifest,
            samples=replicates,
            fingerprint=Fingerprint(results.fingerprint),
            prep=results.prep,
            tag=Tag(tag) if tag else None,
            judgement=results.judgement,
            expected=launch.expected,
            findings=results.findings + torn,
            overrides=launch.overrides,
            lowered=lowered[-1].reason if lowered else "",
        )
        return RunRecord(
            view=view,
            status=results.status,
            finished=results.finished,
            error=results.error,
            host=launch.host,
            folders=launch.folders,
            domain_version=launch.domain_version,
            steps=results.steps,
            lessons=launch.lessons,
            expected_effect=launch.expected_effect,
            audit=tuple(map(str, lowered)),
            flagged=flags(self.home, self.run_id),
            extra=results.extra,
            command=launch.command,
            cwd=launch.cwd,
            folder=self.path,
        )

    def view(self, *, samples: bool = True) -> RunView:
        """What judgement sees of it. Raises BadInput."""
        return self.read(samples=samples).view

    def summaries(self) -> dict[str, dict[str, ArmSummary]]:
        """arm -> metric -> summary, read without the rest; empty where nothing was judged.

        Raises:
            BadInput: The results can't be read.
        """
        return form.read_summaries(read(self._results), self._results)

    def config(self) -> BenchmarkConfig:
        """The frozen configuration. Raises BadInput."""
        return form.read_config(read(self.config_file), self.config_file)

    def samples(self) -> tuple[Sample, ...]:
        """The finished replicates, in the order in which they ended. Raises BadInput."""
        return self._read_samples()[0]

    def _read_samples(self) -> tuple[tuple[Sample, ...], tuple[Finding, ...]]:
        from benchwright.judgement.verdict import Finding

        rows, torn = load_lines(self._samples)
        # A run that was resumed has replicates twice: what failed, and what then took its place.
        latest: dict[tuple[int, str], Sample] = {}
        for line, row in rows:
            sample = form.read_sample(row, self._samples, line)
            latest.pop((sample.order, sample.stage), None)
            latest[sample.order, sample.stage] = sample
        samples = tuple(latest.values())
        if not torn:
            return samples, ()
        message = (
            f"line {len(rows) + 1} of samples.jsonl is torn: its process was killed while it "
            "recorded a replicate, which isn't counted"
        )
        return samples, (Finding("torn-sample", message, caveat=True),)

    def events(self, offset: int = 0) -> tuple[tuple[dict[str, Any], ...], int]:
        """What happened since `offset` bytes of the file, and the offset to go on from."""
        try:
            with self._events.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            return (), offset
        whole = data[: data.rfind(b"\n") + 1]
        return tuple(_parsed(whole)), offset + len(whole)

    # Liveness

    @property
    def status(self) -> Status:
        """Where it stands by its results alone; see `settle`. Raises BadInput."""
        return Status(form.read_head(read(self._results), self._results)["status"])

    def lock(self) -> RunLock:
        """Say that this process runs it, until the lock is released or the process ends.

        Raises:
            BenchwrightError: Another process does.
        """
        return RunLock(self._alive)

    def alive(self) -> bool:
        """Whether a process that runs it lives."""
        return is_held(self._alive)

    def owner(self) -> int | None:
        """Process id of the process that runs it; None where none does.

        Raises:
            BenchwrightError: One does that can't be seen from here (on another machine, say).
        """
        return holder(self._alive)

    def waits(self, unclaimed_after_s: float = UNCLAIMED_AFTER_S) -> bool:
        """Whether it may still be taken up by the process that is to run it."""
        claimed = self._alive.exists() and self._alive.stat().st_size > 0
        return not claimed and time.time() - self._last_sign() < unclaimed_after_s

    def settle(self, unclaimed_after_s: float = UNCLAIMED_AFTER_S) -> Status:
        """Where it truly stands: a run whose process is gone is recorded as interrupted.

        What was finished is kept. Two that settle at once write it once; one that dies half-way
        leaves it as it was.

        Args:
            unclaimed_after_s: Seconds that a run which no process has taken up yet may wait.

        Raises:
            BadInput: Its results can't be read.
        """
        status = self.status
        if status is not Status.IN_PROGRESS or self.alive():
            return status
        with self._writing():
            text = read(self._results)
            status = Status(form.read_head(text, self._results)["status"])
            if status is not Status.IN_PROGRESS or self.alive():
                return status
            waiting = read_waiting(self.path)
            if waiting is not None and not waiting.over:
                return status
            if self.waits(unclaimed_after_s):
                return status
            claimed = self._alive.exists() and self._alive.stat().st_size > 0
            settled, error = Status.INTERRUPTED, LOST if claimed else UNCLAIMED
            if waiting is not None:
                settled = Status.ABORTED_PREFLIGHT
                error = f"nobody answered in time: it waited for {waiting.reason}"
            changes = {
                "status": str(settled),
                "finished": clock.from_epoch(self._last_sign()),
                "error": error,
            }
            self._reserve.unlink(missing_ok=True)
            write_atomically(self._results, form.replace_head(text, self._results, changes))
        update_index(self.home, self.run_id)
        return settled

    def _writing(self) -> AbstractContextManager[None]:
        """Held while the results are replaced.

        Not the lock of the process that runs it: who settles a run mustn't keep one that is
        about to run it from starting.
        """
        return exclusively(self.path / ".writing")

    def _last_sign(self) -> float:
        """Time of the last thing that the run wrote, in seconds since the epoch."""
        files = (self._alive, self._samples, self._events, self._results)
        return max(file.stat().st_mtime for file in files if file.exists())


def _parsed(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # an event is for showing: a damaged one is not worth failing for
        if isinstance(row, dict):
            yield row


def _sweep(workshop: Path) -> None:
    """Remove what processes left that were killed while they created a run."""
    for left in workshop.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > _LEFT_AFTER_S:
                shutil.rmtree(left, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class RunStore:
    """The runs below a benchmark home.

    Attributes:
        home: The benchmark home; created with the first run.
    """

    home: Path

    def create(
        self,
        config: BenchmarkConfig,
        slug: str,
        manifest: Manifest,
        *,
        config_hash: str,
        created: datetime | None = None,
        folders: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
        domain_version: str = "",
        lessons: tuple[str, ...] = (),
        expected_effect: str = "",
        expected: int | None = None,
        fingerprint: Fingerprint | None = None,
        command: tuple[str, ...] = (),
        cwd: str = "",
    ) -> RunFolder:
        """Make the folder of a run that is about to start, complete from its first moment on.

        It is filled under another name and then renamed, which fails where the id is taken: no
        reader ever sees half a run, and two that start in one instant get two ids.

        Args:
            config: What was asked; written once.
            slug: The id's middle part: a recipe's or a file's name.
            manifest: What had to be declared.
            config_hash: SHA-256 of the configuration's canonical form.
            created: When it starts; now, where left out.
            folders, overrides, domain_version, lessons, expected_effect, expected, command,
                cwd: As in `RunView` and `RunRecord`.
            fingerprint: What it is going to run on, where known already.

        Raises:
            BenchwrightError: The home can't be written, or the disk is full.
        """
        from benchwright.execution.host import host_name
        from benchwright.identity.fingerprint import Fingerprint
        from benchwright.judgement.view import RunView

        runs = Layout(self.home).runs
        moment = created or clock.now()
        try:
            runs.mkdir(parents=True, exist_ok=True)
            workshop = Layout(self.home).building
            workshop.mkdir(exist_ok=True)
            _sweep(workshop)
            building = workshop / f"{os.getpid()}-{secrets.token_hex(6)}"
            building.mkdir()
        except OSError as error:
            raise BenchwrightError(
                f"can't make a folder for the run: {error.strerror}", where=Where(runs)
            ) from error
        try:
            (building / "logs").mkdir(mode=0o700)
            (building / "artifacts").mkdir()
            keep_back(building / ".reserve", RESERVE_BYTES)
            write_once(building / "config.yaml", form.write_config(config))
            for _ in range(_DRAWS):
                run_id = check_run_id(new_run_id(slug, moment))
                launch = Launch(
                    run_id=run_id,
                    created=clock.text(moment),
                    config_hash=config_hash,
                    manifest=manifest,
                    host=host_name(),
                    domain_version=domain_version,
                    folders=folders or {},
                    overrides=overrides or {},
                    lessons=lessons,
                    expected_effect=expected_effect,
                    expected=expected,
                    command=command,
                    cwd=cwd,
                )
                view = RunView(
                    run_id=run_id,
                    created=launch.created,
                    config=config,
                    config_hash=config_hash,
                    manifest=manifest,
                    samples=(),
                    fingerprint=fingerprint or Fingerprint(),
                )
                record = RunRecord(view, Status.IN_PROGRESS, host=launch.host)
                write_atomically(building / "launch.json", form.write_launch(launch), PRIVATE)
                write_atomically(building / "results.yaml", dump_yaml(form.results_data(record)))
                try:
                    # A folder never replaces one that holds something, and a run's always does.
                    building.rename(runs / run_id)
                except OSError:
                    if (runs / run_id).exists():
                        continue
                    raise
                sync_folder(runs)
                break
            else:
                raise BenchwrightError(f"{_DRAWS} run ids in a row were taken", where=Where(runs))
        except OSError as error:
            shutil.rmtree(building, ignore_errors=True)
            raise BenchwrightError(
                f"can't make a folder for the run: {error.strerror}", where=Where(runs)
            ) from error
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        update_index(self.home, run_id)
        return RunFolder(self.home, run_id)

    def open(self, run_id: str) -> RunFolder:
        """The folder of a recorded run.

        Raises:
            BadInput: It is no run id, or there is no such run.
        """
        folder = RunFolder(self.home, check_run_id(run_id))
        if not folder.path.is_dir():
            raise BadInput(f"there is no run {run_id}", where=Where(folder.path))
        return folder

    def folders(self) -> tuple[RunFolder, ...]:
        """All runs, in order of their ids."""
        return tuple(RunFolder(self.home, run_id) for run_id in run_ids(self.home))

    def settle_lost(self) -> tuple[str, ...]:
        """Settle each run that the index shows as running; returns the ids of those that don't."""
        from benchwright.record.index import read_index

        ended = []
        for row in read_index(self.home):
            if row.status == Status.IN_PROGRESS:
                folder = RunFolder(self.home, row.run_id)
                try:
                    if folder.settle() is not Status.IN_PROGRESS:
                        ended.append(row.run_id)
                except BadInput:
                    continue  # listed as unreadable; the rest is settled all the same
                except BenchwrightError:
                    ended.append(row.run_id)  # it is recorded once the disk has room again
        with suppress(BenchwrightError):
            # A disk that was full at a run's end may have kept its row from being written.
            if ended:
                update_index(self.home, *ended)
        return tuple(ended)
