"""A record whose every text, wherever a stage or an author could put one, holds markup."""

from __future__ import annotations

from dataclasses import replace

from benchwright.identity.fingerprint import Fingerprint
from benchwright.judgement.verdict import Finding
from benchwright.record.run import RunRecord
from benchwright.spec.model import BenchmarkConfig
from tests.report.sample_record import BASELINE, TREATMENT, record

SCRIPT = "<script>window.planted = 1</script>"
IMAGE = "<img src=x onerror='window.planted = 1'>"
MARKDOWN = "[link](javascript:alert(1)) **bold** `code` | cell\n# heading\n\n- item"
EVIL = f"{SCRIPT}{IMAGE}</script><svg onload=alert(1)>{MARKDOWN}\x1b[2J\x07\u202e"
NAME = "p50<script>window.planted = 1</script>"


def planted() -> RunRecord:
    """The sample record with planted markup."""
    whole = record()
    view, said = whole.view, whole.view.judgement
    assert said is not None
    dumped = view.config.model_dump(mode="json")
    dumped["metrics"][0]["name"] = NAME
    dumped |= {"hypothesis": EVIL, "notes": EVIL, "recipe": EVIL}
    config = BenchmarkConfig.model_validate(dumped)
    metric = config.metrics[0]
    samples = tuple(
        replace(
            sample,
            error=EVIL if sample.error else "",
            measurement=sample.measurement
            and replace(
                sample.measurement,
                metrics={NAME: sample.measurement.metrics["p50_ms"]},
                effective={EVIL: EVIL},
            ),
        )
        for sample in view.samples
    )
    judgement = replace(
        said,
        verdicts=tuple(
            replace(verdict, metric=metric, reasons=(EVIL,), method=EVIL)
            for verdict in said.verdicts
        ),
        guardrails=tuple(replace(g, reason=EVIL, limit=EVIL) for g in said.guardrails),
        summaries={arm: {NAME: said.summaries[arm]["p50_ms"]} for arm in (BASELINE, TREATMENT)},
        tag_reason=EVIL,
        hypothesis_reason=EVIL,
        findings=(Finding("x", EVIL, caveat=True),),
    )
    return replace(
        whole,
        view=replace(
            view,
            config=config,
            samples=samples,
            judgement=judgement,
            fingerprint=Fingerprint({"machine.cpu_model": EVIL, EVIL: "unknown"}),
            prep=tuple(replace(prep, reason=EVIL) for prep in view.prep),
            overrides={"code": EVIL},
        ),
        host=EVIL,
        error=EVIL,
        audit=(EVIL,),
        flagged=(EVIL,),
        command=("benchwright", "run", EVIL),
        expected_effect=f"{NAME} falls",
    )
