"""`report.html`: one file that opens offline, with its figures, styles and scripts inside.

Every value goes through the template's escaping. Beside that a content security policy lets only
the two scripts run that this module put in, by their digests: what a stage printed can't run even
if an escape were forgotten, and nothing is fetched from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchwright.record.run import RunRecord
from benchwright.report import numbers
from benchwright.report.background import Background
from benchwright.report.figures import Figure, figures
from benchwright.report.graph import WIDTH, graph
from benchwright.report.plain import one_line
from benchwright.report.sections import Table, declared_arms, sections, tag_line, title
from benchwright.spec.values import as_text

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_BYTES = 6_000_000
"""Size that a report may have; plotly.js is most of it."""

_ROWS_SHOWN = 500
"""Replicates in the table of all; the rest is in `samples.jsonl`."""

_TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["line"] = _line
    return environment


def prepare() -> None:
    """Read and compile what every page needs; without it, the first page pays for that."""
    for name in _environment().list_templates(extensions=["j2"]):
        _environment().get_template(name)
    _digest(_plotly())


def _line(text: str) -> str:
    """A text on one line, where a number and its per cent sign stay together."""
    return one_line(text).replace(" %", "\N{NO-BREAK SPACE}%")


@cache
def _plotly() -> str:
    """The text of plotly.js as its Python package ships it."""
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    return (package / "package_data" / "plotly.min.js").read_text("utf-8")


@cache
def _digest(script: str) -> str:
    """A script as a content security policy names it."""
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def render_page(template: str, plotted: Iterable[Figure], **values: Any) -> str:
    """A page of ours with plotly.js and these figures in it.

    Args:
        template: Name of a template below `templates/` that extends `page.html.j2`.
        plotted: The figures that the template places.
        values: What else the template shows.
    """
    from markupsafe import Markup

    drawer = (_TEMPLATES / "figures.js").read_text("utf-8")
    shown = tuple(plotted)
    scripts = (_plotly(), drawer) if shown else ()
    allowed = " ".join(map(_digest, scripts)) or "'none'"
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; "
        f"script-src {allowed}; base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template(template)
        .render(
            policy=policy,
            style=Markup((_TEMPLATES / "style.css").read_text("utf-8")),
            scripts=[Markup(script) for script in scripts],
            figures=Markup(_embedded(shown)),
            **values,
        )
    )


def _embedded(plotted: Iterable[Figure]) -> str:
    """The figures as JSON inside a script element: no `<` is left that could end it."""
    data = {figure.key: {"data": figure.data, "layout": figure.layout} for figure in plotted}
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def render_html(record: RunRecord, around: Background | None = None) -> str:
    """A run's report as one self-contained HTML file of less than 6 MB.

    Args:
        record: The run.
        around: What surrounds it: earlier runs and the notes that were applied.
    """
    drawn = figures(record)
    tag, reason = tag_line(record)
    judgement = record.view.judgement
    return render_page(
        "report.html.j2",
        [figure for group in drawn.values() for figure in group],
        title=one_line(title(record)),
        record=record,
        tag=tag,
        reason=reason,
        verdicts=[
            (str(verdict.decision), (verdict.reasons or (verdict.metric.name,))[0])
            for verdict in (judgement.verdicts if judgement else ())
        ],
        sections=sections(record, around),
        drawn=drawn,
        graph=graph(record),
        box_width=WIDTH,
        folded=tuple(_folded(record)),
        configuration=_configuration(record),
    )


def _configuration(record: RunRecord) -> str:
    from benchwright.spec.source import dump_yaml

    return dump_yaml(record.view.config.model_dump(mode="json"))


def _folded(record: RunRecord) -> Iterable[Table]:
    """Tables that a reader unfolds."""
    view = record.view
    yield Table(
        "Fingerprint: what it ran on",
        ("Field", "Value"),
        tuple(view.fingerprint.fields.items()),
    )
    yield Table(
        "Prep stages",
        ("Stage", "Arm", "Cache", "Took", "Signature", "Why"),
        tuple(
            (
                result.stage,
                result.arm,
                "hit" if result.cached else "miss",
                numbers.duration(result.wall_s),
                result.signature[:12],
                result.reason,
            )
            for result in view.prep
        ),
        frozenset({3}),
    )
    yield Table(
        "Effective parameters: what the system said it used",
        ("Arm", "Parameter", "Declared", "Effective"),
        tuple(_effective(record)),
    )
    returned = {**record.steps, **record.extra}
    if returned:
        yield Table(
            "What the steps and the domain returned",
            ("Name", "Value"),
            tuple(
                (name, json.dumps(value, default=str, ensure_ascii=False))
                for name, value in returned.items()
            ),
        )
    names = dict.fromkeys(
        name for sample in view.samples if sample.measurement for name in sample.measurement.metrics
    )
    more = len(view.samples) - _ROWS_SHOWN
    yield Table(
        "Every replicate" + (f" (the first {_ROWS_SHOWN})" if more > 0 else ""),
        ("Order", "Block", "Arm", "Ended", "Took", "Peak MB", *names),
        tuple(_replicate(sample, list(names)) for sample in view.samples[:_ROWS_SHOWN]),
        frozenset({0, 1, 4, 5, *range(6, 6 + len(names))}),
    )


def _effective(record: RunRecord) -> Iterable[tuple[str, ...]]:
    declared: Mapping[str, Mapping[str, Any]] = {
        arm.name: arm.params for arm in declared_arms(record)
    }
    seen: dict[tuple[str, str], list[str]] = {}
    for sample in record.view.samples:
        if sample.measurement is not None:
            for name, value in sample.measurement.effective.items():
                values = seen.setdefault((sample.arm, name), [])
                if as_text(value) not in values:
                    values.append(as_text(value))
    for (arm, name), values in seen.items():
        given = declared.get(arm, {})
        yield (
            arm,
            name,
            as_text(given[name]) if name in given else "not declared",
            ", ".join(values),
        )


def _replicate(sample: Any, names: list[str]) -> tuple[str, ...]:
    measured = sample.measurement.metrics if sample.measurement else {}
    ended = str(sample.reason) if sample.ok else f"{sample.reason}: {one_line(sample.error)[:120]}"
    return (
        str(sample.order),
        f"warm-up {sample.block}" if sample.warmup else str(sample.block),
        sample.arm,
        ended,
        numbers.duration(sample.duration_s),
        numbers.figure(sample.usage.peak_memory_mb),
        *(numbers.figure(measured.get(name)) for name in names),
    )
