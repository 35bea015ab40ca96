"""Run folders: what is written survives, what is read is what was written."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchwright.errors import BadInput, BenchwrightError
from benchwright.judgement.verdict import Tag
from benchwright.record import form
from benchwright.record.index import read_index, rebuild_index
from benchwright.record.run import RunRecord, Status
from benchwright.record.store import LOST, UNCLAIMED, RunFolder, RunStore
from benchwright.spec.values import Value
from tests.report.sample_record import CONFIG, MANIFEST, RUN_ID, record
from tests.support import require

fork = multiprocessing.get_context("fork")


def start(home: Path, name: str = "retrieval-index") -> RunFolder:
    sample = record()
    return RunStore(home).create(
        CONFIG,
        name,
        MANIFEST,
        config_hash=sample.view.config_hash,
        folders=sample.folders,
        overrides=sample.view.overrides,
        domain_version=sample.domain_version,
        lessons=sample.lessons,
        expected_effect=sample.expected_effect,
        expected=sample.view.expected,
        fingerprint=sample.view.fingerprint,
        command=sample.command,
        cwd=sample.cwd,
    )


def finish(folder: RunFolder) -> RunRecord:
    """Write the sample record into `folder`, as the run of that id."""
    sample = record()
    begun = folder.read()
    whole = replace(
        sample,
        view=replace(sample.view, run_id=folder.run_id, created=begun.view.created),
        host=begun.host,
    )
    for replicate in whole.view.samples:
        folder.append_sample(replicate)
    folder.write_results(whole)
    return whole


def test_a_record_is_read_back_exactly_as_it_was_written(tmp_path: Path) -> None:
    folder = start(tmp_path)
    written = finish(folder)
    assert folder.read() == written


def test_floats_survive_to_the_last_bit(tmp_path: Path) -> None:
    folder = start(tmp_path)
    values = (0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, 1e22, 123456789.12345679)
    sample = record().view.samples[0]
    assert sample.measurement is not None
    measured = replace(sample.measurement, values={"p50_ms": values})
    folder.append_sample(replace(sample, measurement=measured, duration_s=values[0]))
    (back,) = folder.samples()
    assert back.measurement is not None
    assert [v.hex() for v in back.measurement.values["p50_ms"]] == [v.hex() for v in values]
    assert back.duration_s == values[0]


def test_effective_values_keep_their_kind(tmp_path: Path) -> None:
    folder = start(tmp_path)
    sample = record().view.samples[0]
    assert sample.measurement is not None
    effective: dict[str, Value] = {
        "a": 1,
        "b": 1.0,
        "c": True,
        "d": "1",
        "e": None,
        "f": (1, "x", None),
    }
    folder.append_sample(
        replace(sample, measurement=replace(sample.measurement, effective=effective))
    )
    back = folder.samples()[0].measurement
    assert back is not None
    assert repr(back.effective) == repr(effective)


def test_text_that_looks_like_yaml_or_is_no_utf8_does_not_break_a_record(tmp_path: Path) -> None:
    folder = start(tmp_path)
    awkward = "no: - # \x1b[31m\narms:\n  'x' \u2028 é"
    whole = replace(finish(folder), status=Status.FAILED, error=awkward)
    folder.write_results(whole)
    assert folder.read().error == awkward
    folder.write_results(
        replace(whole, error="half: \udcff, nothing: \0", steps={"probe": {"a\0": float("nan")}})
    )
    assert folder.read().error == "half: \ufffd, nothing: \ufffd"
    assert folder.read().steps == {"probe": {"a\ufffd": "nan"}}


def test_the_configuration_is_frozen_and_the_files_have_the_modes_they_need(
    tmp_path: Path,
) -> None:
    old = os.umask(0o022)
    try:
        folder = start(tmp_path)
        finish(folder)
        folder.event({"kind": "stage_started"})
        report = folder.write_report("report.md", "# x")
    finally:
        os.umask(old)
    mode = {p.name: stat.S_IMODE(p.stat().st_mode) for p in folder.path.iterdir()}
    assert mode["config.yaml"] == 0o444
    assert mode["launch.json"] == mode["samples.jsonl"] == mode["events.jsonl"] == 0o600
    assert mode["logs"] == 0o700
    assert mode["results.yaml"] == mode[report.name] == 0o644


def test_a_run_id_that_is_taken_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(tmp_path)
    drawn = iter([first.run_id, first.run_id, f"{first.run_id[:-6]}abcdef"])
    monkeypatch.setattr("benchwright.record.store.new_run_id", lambda name, now: next(drawn))
    assert start(tmp_path).run_id.endswith("abcdef")
    assert first.read().status is Status.IN_PROGRESS


def test_a_torn_last_replicate_is_left_out_and_said(tmp_path: Path) -> None:
    folder = start(tmp_path)
    finish(folder)
    path = folder.path / "samples.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    view = folder.read().view
    assert len(view.samples) == 21
    assert [finding.code for finding in view.findings] == ["torn-sample"]
    # The next replicate follows the last whole one, on a line of its own.
    folder.append_sample(record().view.samples[-1])
    assert path.read_bytes() == whole
    assert folder.read().view.findings == ()


def test_a_replicate_that_was_run_again_counts_once_as_it_ended_last(tmp_path: Path) -> None:
    folder = start(tmp_path)
    failed = next(s for s in record().view.samples if not s.ok)
    good = record().view.samples[3]
    again = replace(good, order=failed.order)
    for sample in (good, failed, again):
        folder.append_sample(sample)
    assert folder.samples() == (good, again)
    assert len((folder.path / "samples.jsonl").read_text().splitlines()) == 3


def test_a_damaged_line_is_named_by_file_and_line(tmp_path: Path) -> None:
    folder = start(tmp_path)
    finish(folder)
    path = folder.path / "samples.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for damage, word in (
        ("{oops}\n", "JSON"),
        ('{"stage": "x"}\n', "replicate"),
        ("3\n", "object"),
    ):
        path.write_text("".join([*lines[:4], damage, *lines[5:]]))
        with pytest.raises(BadInput, match=rf"samples.jsonl:5.*{word}"):
            folder.read()


def test_a_number_that_is_not_finite_is_refused_when_read(tmp_path: Path) -> None:
    folder = start(tmp_path)
    folder.append_sample(record().view.samples[0])
    path = folder.path / "samples.jsonl"
    path.write_text(path.read_text().replace('"duration_s":', '"duration_s":NaN,"x":', 1))
    with pytest.raises(BadInput, match=r"samples.jsonl:1: .*NaN"):
        folder.read()


def test_results_of_a_newer_version_are_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = start(tmp_path)
    path = folder.path / "results.yaml"
    path.write_text(path.read_text().replace("schema: 1", "schema: 2"))
    with pytest.raises(BadInput, match=r"(?s)results.yaml:1.*newer version.*next: update"):
        folder.read()


def test_results_that_were_edited_wrongly_name_file_line_and_key(tmp_path: Path) -> None:
    folder = start(tmp_path)
    finish(folder)
    path = folder.path / "results.yaml"
    text = path.read_text()
    line = 1 + text.splitlines().index("    decision: better")
    path.write_text(text.replace("    decision: better", "    decision: superb"))
    with pytest.raises(BadInput, match=rf"results.yaml:{line}: judgement.verdicts.*decision"):
        folder.read()


def test_a_replicate_that_was_recorded_survives_kill_9(tmp_path: Path) -> None:
    folder = start(tmp_path)
    ours, theirs = os.pipe()

    def work() -> None:
        with folder.lock():
            for replicate in record().view.samples[:5]:
                folder.append_sample(replicate)
            os.write(theirs, b"5")
            signal.pause()

    child = fork.Process(target=work)
    child.start()
    os.read(ours, 1)
    assert folder.alive()
    assert folder.settle() is Status.IN_PROGRESS
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    os.close(ours)
    os.close(theirs)
    assert not folder.alive()
    assert folder.settle() is Status.INTERRUPTED
    lost = folder.read()
    assert (lost.status, lost.error) == (Status.INTERRUPTED, LOST)
    assert len(lost.view.samples) == 5
    (row,) = read_index(tmp_path)
    assert (row.status, row.note) == ("INTERRUPTED", LOST)


def test_a_stage_or_a_fork_that_outlives_its_run_does_not_keep_it_alive(tmp_path: Path) -> None:
    folder = start(tmp_path)
    lock = folder.lock()
    program = subprocess.Popen(["sleep", "60"], close_fds=False)
    ours, theirs = os.pipe()

    def stay() -> None:
        os.write(theirs, b"1")
        signal.pause()

    twin = fork.Process(target=stay)
    twin.start()
    os.read(ours, 1)
    try:
        assert folder.alive()
        lock.release()
        assert not folder.alive()
    finally:
        for child in (program, twin):
            child.kill()
        program.wait()
        twin.join()
        os.close(ours)
        os.close(theirs)


def test_only_one_process_runs_a_run(tmp_path: Path) -> None:
    folder = start(tmp_path)
    with folder.lock(), pytest.raises(BenchwrightError, match=f"pid {os.getpid()}"):
        folder.lock()
    folder.lock().release()


def _settle(folder: RunFolder, gate: object) -> None:
    gate.wait()  # type: ignore[attr-defined]
    assert folder.settle() is Status.INTERRUPTED


def test_many_that_settle_one_lost_run_at_once_agree(tmp_path: Path) -> None:
    folder = start(tmp_path)
    folder.lock().release()
    gate = fork.Barrier(8)
    children = [fork.Process(target=_settle, args=(folder, gate)) for _ in range(8)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 8
    assert folder.read().error == LOST
    assert read_index(tmp_path) == rebuild_index(tmp_path)


def test_a_run_that_waits_for_its_process_is_lost_only_after_a_while(tmp_path: Path) -> None:
    folder = start(tmp_path)
    assert folder.settle() is Status.IN_PROGRESS
    long_ago = time.time() - 120
    for path in folder.path.iterdir():
        os.utime(path, (long_ago, long_ago))
    assert RunStore(tmp_path).settle_lost() == (folder.run_id,)
    assert folder.read().error == UNCLAIMED


def test_a_run_that_is_to_go_on_waits_for_its_new_process(tmp_path: Path) -> None:
    folder = start(tmp_path)
    folder.lock().release()
    assert folder.settle() is Status.INTERRUPTED
    lost = folder.read()
    folder.write_results(replace(lost, status=Status.IN_PROGRESS, error="", finished=""))
    assert folder.settle() is Status.IN_PROGRESS
    with folder.lock():
        folder.write_results(replace(lost, status=Status.IN_PROGRESS, error="", finished=""))
        assert folder.alive()
    assert folder.settle() is Status.INTERRUPTED
    assert folder.read().error == LOST


def _ask(folder: RunFolder, gate: object) -> None:
    gate.wait()  # type: ignore[attr-defined]
    for _ in range(2000):
        folder.alive()


def test_who_asks_whether_a_run_lives_never_keeps_its_process_from_running_it(
    tmp_path: Path,
) -> None:
    folder = start(tmp_path)
    gate = fork.Barrier(3)
    children = [fork.Process(target=_ask, args=(folder, gate)) for _ in range(2)]
    for child in children:
        child.start()
    gate.wait()
    for _ in range(200):
        folder.lock().release()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]


def test_the_summaries_of_the_arms_are_read_alone(tmp_path: Path) -> None:
    folder = start(tmp_path)
    assert folder.summaries() == {}
    whole = finish(folder)
    assert whole.view.judgement is not None
    assert folder.summaries() == whole.view.judgement.summaries


def test_a_finished_run_is_never_settled(tmp_path: Path) -> None:
    folder = start(tmp_path)
    finish(folder)
    before = (folder.path / "results.yaml").read_bytes()
    assert folder.settle() is Status.COMPLETED
    assert (folder.path / "results.yaml").read_bytes() == before


def test_who_follows_sees_each_event_once_and_never_half_of_one(tmp_path: Path) -> None:
    folder = start(tmp_path)
    assert folder.events() == ((), 0)
    folder.event({"kind": "stage_started", "stage": "build"})
    with (folder.path / "events.jsonl").open("a") as file:
        file.write('{"kind": "ha')
    (event,), offset = folder.events()
    assert event["kind"] == "stage_started"
    assert event["t"]
    with (folder.path / "events.jsonl").open("a") as file:
        file.write('lf"}\n')
    assert folder.events(offset)[0] == ({"kind": "half"},)


def test_what_a_kill_left_half_created_is_no_run_and_is_swept(tmp_path: Path) -> None:
    folder = start(tmp_path)
    left = tmp_path / ".building" / "1-abc"
    shutil.copytree(folder.path, left)
    os.utime(left, (0, 0))
    fresh = tmp_path / ".building" / "2-abc"
    fresh.mkdir()
    assert len(rebuild_index(tmp_path)) == 1
    start(tmp_path)
    assert [path.name for path in (tmp_path / ".building").iterdir()] == [fresh.name]


def _replace_results(folder: RunFolder, number: int, gate: object) -> None:
    gate.wait()  # type: ignore[attr-defined]
    begun = folder.read()
    for _ in range(5):
        folder.write_results(replace(begun, status=Status.FAILED, error=f"{number}" * 5000))


def test_many_that_write_results_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    folder = start(tmp_path)
    gate = fork.Barrier(4)
    children = [fork.Process(target=_replace_results, args=(folder, n, gate)) for n in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * 4
    assert len(set(folder.read().error)) == 1
    assert not list(folder.path.glob(".*.new"))


def test_results_of_another_run_are_not_written_into_a_folder(tmp_path: Path) -> None:
    folder = start(tmp_path)
    with pytest.raises(BadInput, match=RUN_ID):
        folder.write_results(record())


def test_there_is_no_way_out_of_the_folder_of_runs(tmp_path: Path) -> None:
    for text in (
        "../../etc",
        "/etc",
        "2026-03-02_a/../../x_3fa91c",
        "",
        ".",
        "2026-03-02_x_3fa91c\n",
    ):
        with pytest.raises(BadInput):
            RunStore(tmp_path).open(text)


def test_a_thousand_replicates_are_read_without_a_second_look_at_any_file(tmp_path: Path) -> None:
    folder = start(tmp_path)
    finish(folder)
    rows = [
        json.dumps(form.write_sample(replace(record().view.samples[0], order=number))) + "\n"
        for number in range(1000)
    ]
    (folder.path / "samples.jsonl").write_text("".join(rows))
    opened: list[str] = []
    watching = True

    def watch(event: str, args: tuple[object, ...]) -> None:
        if watching and event == "open" and str(folder.path) in str(args[0]):
            opened.append(Path(str(args[0])).name)

    sys.addaudithook(watch)
    assert len(folder.read().view.samples) == 1000
    watching = False
    assert sorted(opened) == [
        ".results.json",
        "config.yaml",
        "launch.json",
        "results.yaml",
        "samples.jsonl",
    ]


_ON_A_FULL_DISK = """
import subprocess, sys
from dataclasses import replace
from pathlib import Path
home = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(home)], check=True)
from benchwright.errors import BenchwrightError
from tests.record.test_store import start, finish
folder = start(home)
whole = finish(folder)
before = folder.read()
filler = open(home / "filler", "wb", buffering=0)
try:
    while True:
        filler.write(b"x" * 512)
except OSError:
    pass
said = []
attempts = [
    lambda: [folder.append_sample(replace(s, order=100 + s.order)) for s in whole.view.samples],
    lambda: folder.write_results(replace(whole, error="x" * 50000)),
    lambda: folder.write_report("report.md", "x" * 50000),
    lambda: start(home),
]
for attempt in attempts:
    try:
        attempt()
    except BenchwrightError as error:
        said.append(str(error))
after = folder.read()
kept = after.view.samples[: len(before.view.samples)] == before.view.samples
same = replace(after, view=replace(after.view, samples=())) == replace(
    before, view=replace(before.view, samples=())
)
left = [p.name for p in home.rglob("*") if p.name.endswith(".new") or p.parent.name == ".building"]
print(len(said), all("the disk is full" in s for s in said), kept, same, left)
"""


def _alone(script: str, home: Path) -> str:
    """What a script prints that runs with a mount namespace of its own."""
    command = ["unshare", "--mount", "--map-root-user"]
    can = shutil.which("unshare") and not subprocess.run([*command, "true"], check=False).returncode
    require(bool(can), "a mount namespace of one's own (unshare --mount --map-root-user)")
    done = subprocess.run(
        [*command, sys.executable, "-c", script, str(home)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.stderr == ""
    return done.stdout


def test_a_full_disk_leaves_the_earlier_record_and_is_said(tmp_path: Path) -> None:
    assert _alone(_ON_A_FULL_DISK, tmp_path) == "4 True True True []\n"


_LAST_WORDS = """
import subprocess, sys
from dataclasses import replace
from pathlib import Path
home = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(home)], check=True)
from benchwright.record.index import read_index, rebuild_index
from benchwright.record.run import Status
from tests.record.test_store import start
folder, lost = start(home), start(home)
lost.lock().release()
lock = folder.lock()
filler = open(home / "filler", "wb", buffering=0)
try:
    while True:
        filler.write(b"x" * 512)
except OSError:
    pass
folder.write_results(replace(folder.read(), status=Status.FAILED, error="the disk is full"))
lost.settle()
rows = read_index(home)
print([row.status for row in sorted(rows, key=lambda row: row.status)], folder.read().error)
print(rows == rebuild_index(home), len(list(home.glob("runs/*/.reserve"))))
"""


def test_a_run_has_room_for_its_end_on_a_full_disk(tmp_path: Path) -> None:
    said = _alone(_LAST_WORDS, tmp_path).splitlines()
    assert said == ["['FAILED', 'INTERRUPTED'] the disk is full", "True 0"]


def test_a_reclassified_run_has_its_tag_and_its_audit_wherever_it_is_read(tmp_path: Path) -> None:
    from benchwright.record.audit import record_reclassification

    folder = start(tmp_path)
    finish(folder)
    record_reclassification(
        tmp_path, folder.run_id, Tag.EXPLORATORY, "one machine\nonly", was=Tag.UNRELIABLE, by="ann"
    )
    read = folder.read()
    assert read.view.tag is Tag.EXPLORATORY
    assert read.view.judgement is not None
    assert read.view.judgement.tag is Tag.UNRELIABLE
    assert read.audit[0].endswith("UNRELIABLE -> EXPLORATORY by ann: one machine only")
    assert [row.tag for row in read_index(tmp_path)] == ["EXPLORATORY"]
    assert json.loads((folder.path / "audit.jsonl").read_text())["reason"] == "one machine only"


def _hold(folder: RunFolder, held: object, end: object) -> None:
    with folder.lock():
        held.set()  # type: ignore[attr-defined]
        end.wait()  # type: ignore[attr-defined]


def test_the_process_that_runs_a_run_is_named_by_its_lock(tmp_path: Path) -> None:
    folder = start(tmp_path)
    assert folder.owner() is None
    held, end = fork.Event(), fork.Event()
    child = fork.Process(target=_hold, args=(folder, held, end))
    child.start()
    held.wait()
    assert folder.owner() == child.pid
    end.set()
    child.join()
    assert folder.owner() is None, "the file still names it, and nobody holds the lock"


def test_a_holder_that_cannot_be_seen_is_an_error_and_not_a_process_to_end(tmp_path: Path) -> None:
    folder = start(tmp_path)
    with folder.lock():
        stranger = subprocess.Popen(["sleep", "60"])
        try:
            (folder.path / ".alive").write_text(f"pid {stranger.pid}\n")
            with pytest.raises(BenchwrightError, match="can be seen from here"):
                folder.owner()
        finally:
            stranger.kill()
            stranger.wait()


def test_the_results_that_people_read_have_the_last_word_over_their_shadow(tmp_path: Path) -> None:
    folder = start(tmp_path)
    finished = finish(folder)
    shadow, results = folder.path / ".results.json", folder.path / "results.yaml"
    assert folder.read() == replace(finished, folder=folder.path)
    text = results.read_text()
    results.write_text(text.replace(f"finished: '{finished.finished}'", "finished: by hand"))
    assert folder.read().finished == "by hand"
    results.write_text(text)
    digest = shadow.read_text().partition("\n")[0]
    for damaged in ("", digest, f"{digest}\n{{torn", f"{digest}\n[]"):
        shadow.write_text(damaged)
        assert folder.read().finished == finished.finished
    shadow.unlink()
    assert folder.read().finished == finished.finished
