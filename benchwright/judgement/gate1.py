"""Gate 1: the same experiment but for the treatment.

Rules 2 and 3 refuse a plan; rules 1, 4 and 6 are read off a finished run; rule 5 refuses a
comparison. Each function says what it found and decides nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel

from benchwright.errors import Difference, GateRefused, Where
from benchwright.execution.sample import LOG_EVIDENCE, Sample
from benchwright.identity.canonical import config_hash
from benchwright.identity.effective import compare_effective
from benchwright.identity.effective import same_value as same_effective
from benchwright.judgement import words
from benchwright.judgement.kin import of_one_kind
from benchwright.judgement.units import analysed
from benchwright.judgement.verdict import Finding, Tag
from benchwright.judgement.view import RunView
from benchwright.spec.arms import Arm, expand_arms
from benchwright.spec.manifest import Manifest, ManifestEntry
from benchwright.spec.model import BenchmarkConfig
from benchwright.spec.values import Value, as_text

PROVENANCE = ("base_model", "dataset", "tokenizer", "precision", "seed", "eval_suite")
"""What every manifest of a machine-learning recipe names (gate 1, rule 2), as the last part of a
parameter's dotted name."""

VERIFIED = "verified"
"""Code of a finding whose message is the name of a manifest entry that was verified. It is a mark
for `unverified`, not a sentence for a reader."""

CODE_WORDS = frozenset(
    {"binary", "branch", "build", "code", "commit", "patch", "ref", "revision", "version"}
)
"""A treatment whose dotted name has one of these words in it is a change of code."""

ABSENT = "absent"
"""How a value that isn't there is written in a row of differences."""


# Rule 1: frozen when planned


def changed_after_planning(view: RunView) -> tuple[Finding, ...]:
    """Rule 1: the configuration of the record is the one that was hashed."""
    now = config_hash(view.config)
    if now == view.config_hash:
        return ()
    return (
        Finding(
            "config-changed",
            f"The configuration was changed after it was planned: its hash is {now[:12]}, the "
            f"record says {view.config_hash[:12]}.",
            failure=True,
        ),
    )


# Rule 2: declared


def missing_parameters(
    config: BenchmarkConfig, manifest: Manifest, priors: Sequence[RunView]
) -> tuple[Difference, ...]:
    """Rule 2: the manifest's parameters that the configuration doesn't declare.

    Args:
        config: The plan.
        manifest: What its recipe and domain ask for.
        priors: Earlier runs; the last RELIABLE one of the same kind gives the value to declare.

    Returns:
        A row for each: the value that the last RELIABLE run had (or the default), and why the
        parameter must be declared.
    """
    declared = config.flat_params
    earlier = latest_reliable(config, priors)
    return tuple(
        _missing(entry, earlier) for entry in manifest.entries if not _declares(declared, entry)
    )


def _declares(declared: Mapping[str, Value], entry: ManifestEntry) -> bool:
    """Whether a parameter, or a group of parameters, of that name is declared."""
    return entry.name in declared or any(name.startswith(f"{entry.name}.") for name in declared)


def _missing(entry: ManifestEntry, earlier: RunView | None) -> Difference:
    value, source = entry.default, "the default"
    if earlier is not None and entry.name in earlier.config.flat_params:
        value, source = earlier.config.flat_params[entry.name], f"in {earlier.run_id}"
    known = as_text(tuple(value) if isinstance(value, list) else value)
    impact = f" If it drifts: {entry.impact.rstrip('.')}." if entry.impact else ""
    return Difference(
        field=entry.name,
        left="not declared",
        right=f"{known} ({source})",
        why=f"{entry.reason.rstrip('.')}.{impact}",
    )


def missing_provenance(manifest: Manifest) -> tuple[str, ...]:
    """Rule 2: the provenance that a machine-learning manifest leaves out."""
    named = {entry.name.rpartition(".")[2] for entry in manifest.entries}
    return tuple(name for name in PROVENANCE if name not in named)


# Rule 3: inherited, the treatment, or justified


def latest_reliable(config: BenchmarkConfig, priors: Sequence[RunView]) -> RunView | None:
    """The latest RELIABLE run of the same kind."""
    same = [
        prior for prior in priors if prior.tag is Tag.RELIABLE and of_one_kind(config, prior.config)
    ]
    return max(same, key=lambda prior: prior.created, default=None)


def unjustified(
    config: BenchmarkConfig, manifest: Manifest, latest: RunView | None
) -> tuple[Difference, ...]:
    """Rule 3: parameters of the latest RELIABLE run that changed without a reason.

    Args:
        config: The plan; `justified` holds its reasons.
        manifest: Gives the reason why a parameter matters, where it names it.
        latest: The latest RELIABLE run of the same kind; None where there is none.

    Returns:
        A row for each parameter that is neither inherited, nor the treatment, nor justified.
    """
    if latest is None:
        return ()
    now, before = config.flat_params, latest.config.flat_params
    reasons = {entry.name: entry.reason for entry in manifest.entries}
    return tuple(
        Difference(
            field=name,
            left=text_of(now, name),
            right=f"{as_text(value)} (in {latest.run_id})",
            why=reasons.get(
                name,
                "A parameter that changes unnoticed makes two experiments of one: inherit it, or "
                "say why under `justified`.",
            ),
        )
        for name, value in before.items()
        if name != config.treatment_variable
        and not same_value(now, before, name)
        and not config.justified.get(name, "").strip()
    )


def same_value(left: Mapping[str, Value], right: Mapping[str, Value], name: str) -> bool:
    """Whether both declare the parameter with the same value. `1`, `1.0` and `true` differ as
    text does: a program receives text."""
    return name in left and name in right and as_text(left[name]) == as_text(right[name])


def text_of(params: Mapping[str, Value], name: str) -> str:
    """A parameter's value as text; `absent` where it isn't declared."""
    return as_text(params[name]) if name in params else ABSENT


def require_declared(
    config: BenchmarkConfig, manifest: Manifest, priors: Sequence[RunView]
) -> None:
    """Refuse a plan that leaves out what its manifest asks for (rule 2).

    Raises:
        GateRefused: With a row for each missing parameter.
    """
    rows = missing_parameters(config, manifest, priors)
    if rows:
        names = words.listed([row.field for row in rows])
        raise GateRefused(
            f"the manifest asks for {names}, and the configuration doesn't declare "
            f"{'it' if len(rows) == 1 else 'them'}",
            differences=rows,
            where=Where(key="params"),
            expected="every parameter of the manifest under `params`, even at its default",
            hint="declare " + "; ".join(f"{row.field}: {row.right}" for row in rows),
            columns=("this plan", "known value"),
        )


def require_justified(
    config: BenchmarkConfig, manifest: Manifest, priors: Sequence[RunView]
) -> None:
    """Refuse a plan that changes a parameter without a reason (rule 3).

    Raises:
        GateRefused: With a row for each unexplained change.
    """
    latest = latest_reliable(config, priors)
    rows = unjustified(config, manifest, latest)
    if rows and latest is not None:
        names = words.listed([row.field for row in rows])
        verb = "differs" if len(rows) == 1 else "differ"
        raise GateRefused(
            f"{names} {verb} from the latest RELIABLE run {latest.run_id} without a reason",
            differences=rows,
            where=Where(key=f"params.{rows[0].field}"),
            expected="each parameter inherited, the treatment, or justified",
            hint="give the earlier value, or the reason: a line `justified: {NAME: reason}` for"
            " each, or `--because TEXT` for what `-p` sets",
            columns=("this plan", "latest RELIABLE run"),
        )


# Rule 4: effective parameters


def drift(view: RunView) -> tuple[Finding, ...]:
    """Rule 4: parameters whose effective value isn't the declared one."""
    arms = {arm.name: arm for arm in expand_arms(view.config)}
    seen: dict[tuple[str, str], tuple[Difference, int]] = {}
    for sample in analysed(view.samples):
        arm = arms.get(sample.arm)
        if arm is None or sample.measurement is None:
            continue
        for row in compare_effective(arm.params, sample.measurement.effective):
            key = (sample.arm, row.field)
            seen[key] = (row, seen[key][1] + 1 if key in seen else 1)
    return tuple(
        Finding(
            "drift",
            f"{row.field} was declared as {row.left}, but {name} ran with {row.right} in "
            f"{words.count(times, 'replicate')}.",
            number=float(times),
            limit=0.0,
            failure=True,
            arm=name,
        )
        for (name, _), (row, times) in seen.items()
    )


def treatment_never_ran(view: RunView) -> tuple[Finding, ...]:
    """Rule 4: arms whose treatment has the same effective value; or that don't report it."""
    variable = view.config.treatment_variable
    if variable is None:
        return ()
    values = {
        arm.name: _effective_values(view.samples, arm, variable) for arm in expand_arms(view.config)
    }
    arms = list(values)
    same = [
        Finding(
            "treatment-never-ran",
            f"{other} and {one} ran with the same {variable}, {as_text(values[other][0])}: the "
            "treatment never ran.",
            failure=True,
            arm=other,
        )
        for place, one in enumerate(arms)
        for other in arms[place + 1 :]
        if any(same_effective(left, right) for left in values[one] for right in values[other])
    ]
    silent = [name for name in arms if _is_silent(view.samples, name, variable)]
    unread = [
        Finding(
            "treatment-unread",
            f"The measure stage of {words.listed(silent)} doesn't report in every replicate which "
            f'{variable} it used: print it as `"effective": {{...}}`, or the treatment can only '
            "be taken on trust.",
            caveat=True,
        )
    ]
    return (*same, *(unread if silent else ()))


def _effective_values(samples: Sequence[Sample], arm: Arm, variable: str) -> list[Value]:
    """The different values of a parameter that an arm's replicates report."""
    return list(
        {
            as_text(value): value
            for reported in _reports(samples, arm.name).values()
            for value in (one[variable] for one in reported if variable in one)
        }.values()
    )


def _is_silent(samples: Sequence[Sample], arm: str, variable: str) -> bool:
    """Whether an arm has a replicate none of whose stages reports a parameter."""
    return any(
        not any(variable in one for one in reported) for reported in _reports(samples, arm).values()
    )


def _reports(samples: Sequence[Sample], arm: str) -> dict[int, list[Mapping[str, Value]]]:
    """What each replicate of an arm says it used, by its place in the order, stage by stage."""
    found: dict[int, list[Mapping[str, Value]]] = {}
    for sample in analysed(samples, arm):
        if sample.measurement is not None:
            found.setdefault(sample.order, []).append(sample.measurement.effective)
    return found


def unverified(view: RunView) -> tuple[Finding, ...]:
    """Rule 2 and 4: manifest entries that nothing verifies in this run."""
    reported = {
        name
        for sample in analysed(view.samples)
        if sample.measurement is not None
        for name in sample.measurement.effective
    }
    told = {finding.message for finding in view.findings if finding.code == VERIFIED}
    blind = [
        entry.name
        for entry in view.manifest.entries
        if _unverified(entry, reported) and entry.name not in told
    ]
    if not blind:
        return ()
    return (
        Finding(
            "unverified",
            f"The manifest asks for {words.listed(blind)}, but nothing says which value the run "
            f"really used: {'it was' if len(blind) == 1 else 'they were'} declared, not verified.",
            number=float(len(blind)),
            limit=0.0,
            caveat=True,
        ),
    )


def _unverified(entry: ManifestEntry, reported: Iterable[str]) -> bool:
    """Whether an entry can't be verified, or is to be reported by a stage that stays silent."""
    how = entry.verify.strip()
    if not how:
        return entry.name not in reported
    if how.startswith("effective:"):
        return how.removeprefix("effective:").strip() not in reported
    return False


# Rule 5: only the treatment differs


def config_differences(left: RunView, right: RunView) -> tuple[Difference, ...]:
    """Rule 5: all that two configurations differ in and that can move a result."""
    return (
        *_param_differences(left.config, right.config),
        *_stage_differences(left.config, right.config),
    )


def _param_differences(left: BenchmarkConfig, right: BenchmarkConfig) -> list[Difference]:
    before, after = left.flat_params, right.flat_params
    names = [*before, *(name for name in after if name not in before)]
    return [
        Difference(
            field=name,
            left=text_of(before, name),
            right=text_of(after, name),
            why="A parameter that differs can make the difference by itself.",
        )
        for name in names
        if not same_value(before, after, name)
    ]


def _stage_differences(left: BenchmarkConfig, right: BenchmarkConfig) -> list[Difference]:
    """What the stages do, by stage and field. What doesn't bear on a value (a time limit, a
    memory budget, the names of artifacts) is left out."""
    fields = (
        *("kind", "cmd", "function", "needs", "inputs", "params", "env", "cwd", "host"),
        *("metrics_from", "effective_from"),
    )
    before = {stage.name: stage for stage in left.stages}
    after = {stage.name: stage for stage in right.stages}
    rows = []
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            there = "declared"
            rows.append(
                Difference(
                    f"stages.{name}",
                    there if one else ABSENT,
                    there if other else ABSENT,
                    "A stage that only one run has is another experiment.",
                )
            )
            continue
        rows += [
            Difference(
                f"stages.{name}.{field}",
                _shown(getattr(one, field)),
                _shown(getattr(other, field)),
                "The stage does something else.",
            )
            for field in fields
            if getattr(one, field) != getattr(other, field)
        ]
        rows += [
            Difference(
                f"stages.{name}.resources.{kind}",
                str(getattr(one.resources, kind)),
                str(getattr(other.resources, kind)),
                "Other devices do the work at another speed.",
            )
            for kind in ("gpus", "tpus")
            if getattr(one.resources, kind) != getattr(other.resources, kind)
        ]
    return rows


def _shown(value: object) -> str:
    """A stage's field as text; what isn't there is absent."""
    if isinstance(value, BaseModel):
        return value.model_dump_json(exclude_defaults=True)
    return ABSENT if value in (None, (), {}) else str(value)


# Rule 6: evidence that changed code ran


def is_code(variable: str | None) -> bool:
    """Whether a treatment is a change of code, by the words in its name."""
    parts = (variable or "").replace("_", ".").replace("-", ".").lower().split(".")
    return not CODE_WORDS.isdisjoint(parts)


def code_evidence(view: RunView) -> tuple[Finding, ...]:
    """Rule 6: evidence that the changed path ran in the treatment, and not in the baseline."""
    evidence = view.config.code_evidence
    if evidence is None:
        if not is_code(view.config.treatment_variable):
            return ()
        return (
            Finding(
                "no-code-evidence",
                f"The treatment {view.config.treatment_variable} is a change of code, and the "
                "configuration names no evidence (`code_evidence`) that the changed path ran.",
                caveat=True,
            ),
        )
    name = evidence.counter or LOG_EVIDENCE
    shown = f"the counter {name}" if evidence.counter else f"a line like {evidence.log_line!r}"
    found = []
    for arm in expand_arms(view.config):
        replicates = _reports(view.samples, arm.name).values()
        ran = sum(_above_zero(reported, name) for reported in replicates)
        wrong = (
            ran
            if arm.is_baseline and len(view.config.treatment_values)
            else (len(replicates) - ran)
        )
        if wrong:
            where = "ran in the baseline" if arm.is_baseline and ran else "is missing"
            found.append(
                Finding(
                    "code-evidence",
                    f"The evidence of the changed code, {shown}, {where} in {wrong} of "
                    f"{words.count(len(replicates), 'replicate')} of {arm.name}.",
                    number=float(wrong),
                    limit=0.0,
                    failure=True,
                    arm=arm.name,
                )
            )
    return tuple(found)


def evidence_between(a: RunView, b: RunView, code_differs: bool) -> tuple[Finding, ...]:
    """Rule 6 over two runs: whether the changed code ran in B, and not in A.

    Args:
        a: The baseline.
        b: The run whose configuration may name evidence; what it has of it in itself was judged
            when it ended.
        code_differs: Whether the runs differ in code.
    """
    evidence = b.config.code_evidence
    if evidence is None:
        if not code_differs:
            return ()
        return (
            Finding(
                "no-code-evidence",
                f"The runs differ in code, and {b.run_id} names no evidence (`code_evidence`) that "
                "the changed path ran.",
                caveat=True,
            ),
        )
    if b.config.treatment_variable is not None:
        return ()  # its own arms hold the evidence, present and absent
    name = evidence.counter or LOG_EVIDENCE
    before = [
        reported
        for arm in expand_arms(a.config)
        for reported in _reports(a.samples, arm.name).values()
    ]
    ran = sum(_above_zero(reported, name) for reported in before)
    if ran:
        return (
            Finding(
                "code-evidence",
                f"The evidence of the changed code, {evidence.counter or 'its line in the log'}, "
                f"is in {ran} of {words.count(len(before), 'replicate')} of the baseline "
                f"{a.run_id} too: the same path ran in both.",
                number=float(ran),
                limit=0.0,
                failure=True,
            ),
        )
    if not all(any(name in stage for stage in reported) for reported in before):
        return (
            Finding(
                "no-code-evidence",
                f"{a.run_id} didn't look for the evidence of the changed code, so nothing says "
                "that the changed path didn't run there.",
                caveat=True,
            ),
        )
    return ()


def _above_zero(reported: Iterable[Mapping[str, Value]], name: str) -> bool:
    """Whether one of a replicate's stages reports a count above zero under that name."""
    for stage in reported:
        value = stage.get(name)
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                continue
        if isinstance(value, int | float) and value > 0:
            return True
    return False
