"""The runs before a run: which are read, with which tags."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchwright.judgement.verdict import Tag
from benchwright.record.audit import record_reclassification
from benchwright.record.prior import latest_citable, latest_reliable, priors
from benchwright.record.run import Status
from benchwright.record.store import RunFolder, RunStore
from tests.record.test_store import finish, start
from tests.report.sample_record import record


def judged(home: Path, tag: Tag, status: Status = Status.COMPLETED) -> RunFolder:
    folder = start(home)
    whole = finish(folder)
    assert whole.view.judgement is not None
    said = replace(whole.view.judgement, tag=tag)
    folder.write_results(
        replace(whole, status=status, view=replace(whole.view, judgement=said, tag=tag))
    )
    return folder


def test_completed_runs_come_with_the_newest_last_and_the_tag_of_today(tmp_path: Path) -> None:
    first = judged(tmp_path, Tag.RELIABLE)
    judged(tmp_path, Tag.RELIABLE, Status.FAILED)
    second = judged(tmp_path, Tag.QUALIFIED)
    start(tmp_path)
    record_reclassification(
        tmp_path, first.run_id, Tag.UNRELIABLE, "wrong data", was=Tag.RELIABLE, by="ann"
    )
    views = priors(tmp_path, "command", "retrieval-index")
    assert [view.run_id for view in views] == [first.run_id, second.run_id]
    assert [view.tag for view in views] == [Tag.UNRELIABLE, Tag.QUALIFIED]
    assert len(views[0].samples) == 22
    assert latest_reliable(tmp_path, "command", "retrieval-index") is None
    citable = latest_citable(tmp_path, "command", "retrieval-index")
    assert citable is not None
    assert citable.run_id == second.run_id


def test_another_domain_or_recipe_is_no_prior(tmp_path: Path) -> None:
    judged(tmp_path, Tag.RELIABLE)
    assert priors(tmp_path, "seismic", "retrieval-index") == ()
    assert priors(tmp_path, "command", None) == ()


def test_only_the_latest_the_last_reliable_and_reproductions_are_read(tmp_path: Path) -> None:
    folders = [judged(tmp_path, Tag.RELIABLE if n == 1 else Tag.QUALIFIED) for n in range(4)]
    ids = [folder.run_id for folder in folders]
    few = priors(tmp_path, "command", "retrieval-index", most=1, samples=False)
    assert [view.run_id for view in few] == [ids[1], ids[3]]
    assert few[0].samples == ()
    same = priors(
        tmp_path,
        "command",
        "retrieval-index",
        most=2,
        config_hash=folders[0].view().config_hash,
        before=ids[3],
    )
    assert [view.run_id for view in same] == ids[1:3]


def test_a_damaged_prior_is_passed_over(tmp_path: Path) -> None:
    first, second = judged(tmp_path, Tag.RELIABLE), judged(tmp_path, Tag.RELIABLE)
    (second.path / "launch.json").write_text("{")
    assert [v.run_id for v in priors(tmp_path, "command", "retrieval-index")] == [first.run_id]
    reliable = latest_reliable(tmp_path, "command", "retrieval-index")
    assert reliable is not None
    assert reliable.run_id == first.run_id


def test_without_a_recipe_only_runs_of_the_same_stages_are_read_however_many_others_there_are(
    tmp_path: Path,
) -> None:
    sample = record()
    assert sample.view.judgement is not None
    said = replace(sample.view.judgement, tag=Tag.RELIABLE)

    def unnamed(name: str) -> RunFolder:
        stages = tuple(
            stage.model_copy(update={"name": f"{name}-{stage.name}", "needs": ()})
            for stage in sample.view.config.stages
        )
        asked = sample.view.config.model_copy(update={"recipe": None, "stages": stages})
        folder = RunStore(tmp_path).create(asked, "x", sample.view.manifest, config_hash=name)
        begun = folder.read()
        view = replace(begun.view, judgement=said, tag=Tag.RELIABLE)
        folder.write_results(replace(begun, status=Status.COMPLETED, view=view))
        return folder

    mine = unnamed("mine")
    for _ in range(3):
        unnamed("other")
    found = priors(tmp_path, "command", None, most=1, like=mine.config())
    assert [view.run_id for view in found] == [mine.run_id]
