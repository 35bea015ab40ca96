"""The flow that compares two recorded runs.

prefect deployment run compare/compare -p a=1a2b3c -p b=4d5e6f --watch
"""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from benchwright.errors import BadInput, BenchwrightError, GateRefused
from benchwright.judgement.compare import compare_runs
from benchwright.record.audit import record_comparison
from benchwright.record.run_id import find_run
from benchwright.record.store import RunStore
from benchwright.report.comparison import render_comparison_artifact, render_refusal_artifact
from flows.submission import flow_home
from tasks.report import plain_key


def _run_name() -> str:
    given = flow_run.parameters
    return f"{given.get('b')} against {given.get('a')}"


@flow(name="compare", flow_run_name=_run_name, description=__doc__, persist_result=False)
def compare(a: str, b: str, allow: tuple[str, ...] = (), home: str | None = None) -> State[Any]:
    """Compare run B with run A, and show what came of it.

    The gates come first: two runs that aren't the same experiment but for the treatment are
    refused, with every difference.

    Args:
        a: The baseline: a run's id, or the end of one.
        b: The run that is asked about.
        allow: Fields of the fingerprint that may differ; the result is QUALIFIED then.
        home: Where the records are; default `$BENCHMARK_HOME` of the worker.
    """
    place = flow_home(home)
    store = RunStore(place)
    try:
        first, second = (store.open(find_run(place, name)) for name in (a, b))
    except BadInput as problem:
        return Failed(name="BadInput", message=str(problem)[:500])
    key = f"compare-{plain_key(first.run_id)}-{plain_key(second.run_id)}"
    try:
        said = compare_runs(first.view(), second.view(), allow=allow)
    except GateRefused as refusal:
        create_markdown_artifact(
            key=key,
            markdown=render_refusal_artifact(first.run_id, second.run_id, refusal),
            description=f"{second.run_id} can't be compared with {first.run_id}",
        )
        return Failed(name="Refused", message=refusal.what[:500])
    except BenchwrightError as problem:
        return Failed(name="BadInput", message=str(problem)[:500])
    record_comparison(place, first.run_id, second.run_id)
    create_markdown_artifact(
        key=key,
        markdown=render_comparison_artifact(said),
        description=f"{second.run_id} against {first.run_id}",
    )
    first_verdict = said.verdicts[0] if said.verdicts else None
    decision = f": {first_verdict.metric.name} {first_verdict.decision}" if first_verdict else ""
    return Completed(message=f"{said.tag}{decision}"[:500])
