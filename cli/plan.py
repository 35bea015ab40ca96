"""`benchwright plan`: what a run would do, and why it may not."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.options import experiment_options, home_option, json_option, open_home, resolve_target
from cli.output import console, print_json, print_table, seconds

if TYPE_CHECKING:
    from benchwright.planning.cost import CostEstimate
    from benchwright.planning.plan import Plan


@click.command(
    epilog="\b\nExamples:\n"
    "  benchwright plan retrieval-index\n"
    "  benchwright plan experiment.yaml 'p50_ms falls by 20 %' -p corpus.n_docs=50000"
)
@experiment_options
@click.argument("hypothesis", required=False)
@home_option
@json_option
def plan(
    target: str,
    hypothesis: str | None,
    overrides: tuple[str, ...],
    replicates: int | None,
    because: str | None,
    home: str | None,
    as_json: bool,
) -> None:
    """Say what a run would do, without running it.

    Validates the configuration, asks the manifest and the earlier runs, and shows the graph with
    what the cache has, where each value came from, and what the run will take.
    """
    from benchwright.planning.plan import make_plan, refuse_challenged

    resolved = resolve_target(target, overrides, replicates, hypothesis, because)
    made = make_plan(resolved, open_home(home), os.environ)
    if as_json:
        refuse_challenged(made, because)
        print_json({**plan_json(made), "because": because})
        return
    show_plan(made)
    refuse_challenged(made, because)
    if made.challenges:
        show_overridden(made, str(because))


def plan_json(made: Plan) -> dict[str, Any]:
    """A plan as data."""
    config = made.config
    return {
        "domain": config.domain,
        "recipe": config.recipe,
        "hypothesis": config.hypothesis,
        "config_hash": made.config_hash,
        "arms": [
            {"name": arm.name, "value": arm.value, "baseline": arm.is_baseline} for arm in made.arms
        ],
        "stages": [
            {"name": stage.name, "kind": stage.kind.value, "needs": list(stage.needs)}
            for stage in config.stages
        ],
        "prep": [
            {
                "stage": item.stage.name,
                "arm": item.arm.name,
                "signature": item.signature.digest,
                "hit": item.hit,
                "reason": item.reason,
            }
            for item in made.prep
        ],
        "replicates": [
            {"order": slot.order, "block": slot.block, "arm": slot.arm, "warmup": slot.warmup}
            for slot in made.slots
        ],
        "provenance": {
            key: {"origin": item.origin, "where": str(item.where) if item.where else None}
            for key, item in made.resolved.provenance.items()
        },
        "challenges": [
            {"code": item.code, "argument": item.argument, "reason": item.reason}
            for item in made.challenges
        ],
        "caveats": list(made.caveats),
        "lessons": [lesson.text for lesson in made.lessons],
        "estimate": {
            "wall_s": made.estimate.wall_s,
            "basis": made.estimate.basis,
            "gpu_hours": made.cost.gpu_hours if made.cost else 0.0,
            "cost_usd": made.cost.usd if made.cost else None,
            "prices": made.cost.prices if made.cost else None,
            "accelerators": [asdict(row) for row in made.cost.stages] if made.cost else [],
        },
    }


def show_plan(made: Plan) -> None:
    """Print a plan for a person."""
    config, out = made.config, console()
    title = config.recipe or config.domain
    out.print(f"[bold]{title}[/bold]  configuration {made.config_hash[:12]}", soft_wrap=True)
    if config.hypothesis:
        out.print("hypothesis: " + config.hypothesis, markup=False, soft_wrap=True)
    out.print()
    by_prep = {(item.stage.name, item.arm.name): item for item in made.prep}
    graph: list[tuple[str, str, str, str, str]] = []
    for stage in config.stages:
        needs = ", ".join(stage.needs)
        planned = [
            by_prep[stage.name, a.name] for a in made.arms if (stage.name, a.name) in by_prep
        ]
        if planned:
            for item in planned:
                graph.append(
                    (
                        stage.name,
                        stage.kind.value,
                        needs,
                        item.arm.name,
                        f"{'hit' if item.hit else 'miss'}: {item.reason}",
                    )
                )
        elif stage.kind.value == "measure":
            each = f"{config.replication.warmup} + {config.replication.replicates} times an arm"
            graph.append((stage.name, "measure", needs, "all", f"runs {each}, never cached"))
        else:
            graph.append((stage.name, stage.kind.value, needs, "", "runs once"))
    print_table(("stage", "kind", "needs", "arm", "cache"), graph)
    out.print()
    print_table(("value of", "is", "from"), value_rows(made))
    out.print()
    if made.estimate.wall_s is None:
        out.print(f"will take: unknown ({made.estimate.basis})", markup=False)
    else:
        took = f"will take about {seconds(made.estimate.wall_s)} ({made.estimate.basis})"
        out.print(took, markup=False)
    if made.cost is not None:
        show_cost(made.cost)
    for text in (*made.resolved.notes, *made.caveats):
        out.print("note: " + text, markup=False)
    for lesson in made.lessons:
        out.print(f"{lesson.id}: {lesson.text}", markup=False)


def show_cost(cost: CostEstimate) -> None:
    """Print what each stage with devices will take."""

    def known(value: float | None, unit: str) -> str:
        return f"{value:.4g} {unit}" if value is not None else f"unknown {unit}"

    rows = [
        (
            row.stage,
            f"{row.launches} x {row.devices}",
            known(row.gpu_hours, "h"),
            known(row.usd, "USD"),
            row.basis,
        )
        for row in cost.stages
    ]
    print_table(("stage", "launches x GPUs", "GPU-hours", "cost", "basis"), rows)
    total = f"{known(cost.gpu_hours, 'GPU-hours')}, {known(cost.usd, 'USD')}"
    console().print(f"in all: {total} ({cost.prices})", markup=False)


def show_overridden(made: Plan, because: str) -> None:
    """Print the challenges that the run would go on in spite of, and the reason."""
    out = console()
    out.print()
    print_table(
        ("challenge", "argument", "why it matters"),
        [(item.code, item.argument, item.reason) for item in made.challenges],
    )
    out.print(f"overridden, and kept in the record: {because}", markup=False, soft_wrap=True)


def value_rows(made: Plan) -> list[tuple[str, str, str]]:
    """Where each value came from; what makes up a metric or a stage is one row.

    Values that nobody set are left out, but for the replication; `--json` has them all.
    """
    rows: dict[str, tuple[str, list[str]]] = {}
    for key, item in made.resolved.provenance.items():
        if item.origin == "default" and not key.startswith("replication."):
            continue
        section, _, rest = key.partition(".")
        name, text = key, item.value_text
        if section in ("metrics", "stages") and "." in rest:
            name = f"{section}.{rest.rpartition('.')[0]}"
            part = rest.rpartition(".")[2]
            text = "" if part in ("name", "meaning") else f"{part}: {item.value_text}"
        place = item.origin
        if item.where is not None and item.where.file is not None:
            place += f" {Path(item.where.file).name}"
            place += f":{item.where.line}" if item.where.line else ""
        _, texts = rows.setdefault(name, (place, []))
        texts += [text] if text else []
    return [(name, ", ".join(texts), place) for name, (place, texts) in rows.items()]
