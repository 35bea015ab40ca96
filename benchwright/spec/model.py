"""What was asked: the frozen models of a configuration file.

A `BenchmarkConfig` is complete: a recipe's values are filled in and `-p` overrides are applied
before it is made (see `resolve`). It is the only form of a configuration that the rest of the
engine sees, and the one that is hashed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from benchwright.spec.values import Scalar, Value, as_text, flatten


class Frozen(BaseModel):
    """A model that can't be changed and that accepts no unknown key."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def _name(text: str) -> str:
    if not text or not all(c.isalnum() or c in "_-" for c in text):
        raise ValueError("a name has letters, digits, '_' and '-' only")
    return text


def _env_text(value: Any) -> Any:
    return value if value is None else as_text(value) if isinstance(value, Scalar) else value


def _tuples(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(tuple(value) if isinstance(value, list) else value for value in values)


TreatmentValues = Annotated[tuple[Any, ...], AfterValidator(_tuples)]
"""The treatment's values; a list among them is one value, a tuple as in `flat_params`."""

EnvValue = Annotated[str | None, BeforeValidator(_env_text)]
"""An environment variable's value; a number or a boolean becomes the text that was written."""

Name = Annotated[str, AfterValidator(_name)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class StageKind(StrEnum):
    """What a stage is for, and so how often it runs."""

    PREP = "prep"
    """Makes artifacts; once for each signature, from the cache afterwards."""
    MEASURE = "measure"
    """Gives metrics; a fresh process for each replicate, never from the cache."""
    STEP = "step"
    """Part of a graph without arms (probe, validate, report); once in each run, never cached."""
    GATE = "gate"
    """Waits for a person's approval before what needs it."""


class Direction(StrEnum):
    """Which way a metric is better."""

    LOWER = "lower"
    HIGHER = "higher"


class Role(StrEnum):
    """What a metric decides."""

    PRIMARY = "primary"
    GUARDRAIL = "guardrail"
    SECONDARY = "secondary"


class Scale(StrEnum):
    """How two values of a metric are compared."""

    RATIO = "ratio"
    """treatment / baseline; values are positive (times, rates, sizes)."""
    DIFFERENCE = "difference"
    """treatment - baseline; values can be zero or negative. Thresholds are absolute."""
    PROPORTION = "proportion"
    """treatment - baseline of shares in [0, 1] (accuracy, recall). Thresholds are absolute."""


class Metric(Frozen):
    """A measured quantity and what is asked of it."""

    name: str = Field(min_length=1)
    """As the measure stage prints it."""
    unit: str = ""
    """Unit of the value, such as `ms` or `1/s`; empty for a pure number."""
    direction: Direction = Direction.LOWER
    """Which way it is better."""
    role: Role = Role.PRIMARY
    """What it decides: the verdict (primary), a limit (guardrail), nothing (secondary)."""
    scale: Scale = Scale.RATIO
    """How two values are compared."""
    min_effect: Positive = 0.01
    """The smallest effect that matters: relative for `ratio`, absolute otherwise."""
    tolerance: Positive = 0.05
    """How far a reproduction may lie off: relative for `ratio`, absolute otherwise."""
    floor: float | None = None
    """Guardrail: the value may not be worse than this (below it, where higher is better)."""
    max_regression: Positive | None = None
    """Guardrail: the largest loss allowed: relative for `ratio`, absolute otherwise."""
    exact: bool = False
    """The value is a count or a size that the same code always gives (instructions, bytes). Only
    then do two constants that differ make a decision; a clock that is too coarse gives constants
    too."""
    meaning: str = ""
    """One line on what it says, for the report."""

    @model_validator(mode="after")
    def _limits_belong_to_guardrails(self) -> Metric:
        has_limit = self.floor is not None or self.max_regression is not None
        if self.role is Role.GUARDRAIL and not has_limit:
            raise ValueError("a guardrail needs `floor` or `max_regression`")
        if self.role is not Role.GUARDRAIL and has_limit:
            raise ValueError("`floor` and `max_regression` need `role: guardrail`")
        return self


class MetricsFormat(StrEnum):
    """How a measure stage writes its metrics."""

    JSON = "json"
    KEY_VALUE = "key_value"
    CSV = "csv"


class MetricsFrom(Frozen):
    """Where a measure stage's metrics are read."""

    stdout: bool = False
    """Read them from the stage's standard output."""
    file: str | None = None
    """Read them from this file, relative to the stage's working directory."""
    format: MetricsFormat | None = None
    """Left out: JSON where the text has a JSON object, else key_value."""
    fields: tuple[str, ...] = ()
    """The metrics that must be there. Empty: every metric of the configuration."""

    @model_validator(mode="after")
    def _one_source(self) -> MetricsFrom:
        if self.stdout == (self.file is not None):
            raise ValueError("exactly one of `stdout: true` and `file: PATH` is needed")
        return self


class EffectiveFrom(Frozen):
    """Where a measure stage says which parameter values it used, if not beside its metrics."""

    file: str
    """The file, relative to the stage's working directory."""
    format: MetricsFormat = MetricsFormat.JSON
    """How it is written."""


class Resources(Frozen):
    """What a stage needs while it runs."""

    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs that it has for itself."""
    vram_mb: Positive | None = None
    """GPU memory needed on each device, in MB (10^6 bytes)."""
    tpus: Annotated[int, Field(ge=0)] = 0
    """TPU chips that it has for itself."""
    memory_mb: Positive | None = None
    """Budget of main memory, in MB (10^6 bytes); the guard ends the stage above it."""
    est_gpu_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """GPU hours that one launch is expected to take."""


class Stage(Frozen):
    """One node of a graph: a shell command, or a Python function named `module:function`."""

    name: Name
    """Unique in the graph; letters, digits, `_` and `-`."""
    kind: StageKind
    """What it is for, and so how often it runs."""
    cmd: str | None = None
    """Run by `bash -e -o pipefail`, with templates filled in."""
    function: str | None = None
    """`package.module:function`, called in a child process with a `StageContext`."""
    needs: tuple[str, ...] = ()
    """The stages whose artifacts or results it uses."""
    produces: tuple[Name, ...] = ()
    """Names of artifacts; each is a path that the stage must create."""
    inputs: tuple[str, ...] = ()
    """Files and folders that the stage reads, relative to the configuration's folder."""
    params: tuple[str, ...] = ()
    """Parameters handed over in the environment, `a.b` as `A_B`."""
    env: dict[str, EnvValue] = Field(default_factory=dict)
    """Variables of the process. Null hands the caller's own value on. What is named neither here
    nor in the short list of the launcher (PATH, HOME, ...) doesn't reach the stage: what a stage
    can't see can't change what it makes behind the signature's back."""
    cwd: str | None = None
    """Working directory, relative to the configuration's folder. Left out: that folder."""
    timeout_s: Positive | None = None
    """Seconds after which it is ended, with all that it started."""
    resources: Resources = Resources()
    """What it needs while it runs."""
    effective_from: EffectiveFrom | None = None
    """Where it says which values it used, if not beside its metrics."""
    metrics_from: MetricsFrom | None = None
    """Where its metrics are read; of a measure stage."""
    host: str | None = None
    """Name of the host to run on; left out: where the flow runs."""

    @model_validator(mode="after")
    def _one_body(self) -> Stage:
        if (self.cmd is None) == (self.function is None):
            raise ValueError("exactly one of `cmd` and `function` is needed")
        if self.kind is not StageKind.MEASURE and self.metrics_from is not None:
            raise ValueError("`metrics_from` belongs to a stage of `kind: measure`")
        return self


class Replication(Frozen):
    """How often each arm is measured."""

    replicates: Annotated[int, Field(ge=1)] = 10
    """Measured launches of each arm; fewer than 5 give no verdict."""
    warmup: Annotated[int, Field(ge=0)] = 1
    """Replicates of each arm that are run first and left out of the analysis."""
    seed: int = 20250101
    """Seed of the order within blocks, and `run.seed` of the stages."""
    seeds_as_replicates: bool = False
    """Replicate i runs with its own `run.seed`: for training, where the seed is the unit."""


class Budget(Frozen):
    """What a run may use at most; above it, it ends cleanly (exit 5)."""

    wall_s: Positive | None = None
    """Seconds of wall-clock time."""
    memory_mb: Positive | None = None
    """Main memory of a stage that names no budget of its own, in MB (10^6 bytes)."""
    trials: Annotated[int, Field(ge=1)] | None = None
    """Parameter sets that the tuner tries."""
    gpu_hours: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """GPU hours."""
    cost_usd: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """US dollars."""


class CodeEvidence(Frozen):
    """Evidence that a changed code path ran (gate 1, rule 6).

    Exactly one of the two is given. It must be there in every treatment replicate, and absent
    in every baseline replicate.
    """

    counter: str | None = None
    """Name of an effective value that is above zero where the path ran."""
    log_line: str | None = None
    """Regular expression that a line of the stage's output matches where the path ran."""

    @model_validator(mode="after")
    def _one_kind(self) -> CodeEvidence:
        if (self.counter is None) == (self.log_line is None):
            raise ValueError("exactly one of `counter` and `log_line` is needed")
        return self


class BenchmarkConfig(Frozen):
    """An experiment, complete and frozen."""

    domain: Name
    """The kind of system, such as `command`."""
    recipe: str | None = None
    """A recipe to start from: what is said here goes over it."""
    hypothesis: str | None = None
    """What is expected, in words; names the metric, such as `p50_ms falls by 20 %`."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Nested parameters; the baseline's values."""
    stages: tuple[Stage, ...] = ()
    """Left out for a typed domain, which makes its own."""
    treatment_variable: str | None = None
    """Dotted name of the one parameter that differs between arms; none: a run without arms."""
    treatment_values: TreatmentValues = ()
    """The treatment's values; the baseline's is the one in `params`."""
    metrics: tuple[Metric, ...] = ()
    """What is measured; left out: what the recipe or the domain says."""
    replication: Replication = Replication()
    """How often each arm is measured, and in which order."""
    budget: Budget = Budget()
    """What the run may use at most."""
    justified: dict[str, str] = Field(default_factory=dict)
    """Parameters that differ from the latest RELIABLE run, each with its reason."""
    packages: tuple[str, ...] = ()
    """Python packages whose versions belong to the software fingerprint."""
    code_evidence: CodeEvidence | None = None
    """What shows that a changed code path ran."""
    notes: str = ""
    """Words for the report."""

    @property
    def flat_params(self) -> dict[str, Value]:
        """The parameters by dotted name."""
        return flatten(self.params)

    def memory_budget_mb(self, stage: Stage) -> float | None:
        """The main memory that a stage may use, in MB: its own budget and the run's, the smaller.

        Stages of a run run one after the other, so the run's budget is each one's.
        """
        given = (stage.resources.memory_mb, self.budget.memory_mb)
        return min((limit for limit in given if limit is not None), default=None)

    def metric(self, name: str) -> Metric:
        """The metric of that name. Raises KeyError."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise KeyError(name)
