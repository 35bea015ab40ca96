"""A metric's history night by night: when its level changed, told as it would have been told then.

How a change is found, each night on what is known so far:

1. The nights since the last change (or since the environment changed) are split by kernel
   change-point detection with a Gaussian kernel (ruptures, `KernelCPD`; Arlot, Celisse and
   Harchaoui, A Kernel Multiple Change-Point Algorithm via Model Selection, JMLR 20(162), 2019).
   A bounded kernel gives one bad night a bounded weight. The penalty is low: it proposes.
2. A proposed split counts where three things agree: the shift between both sides (Hodges-Lehmann)
   is too large for the noise (Student's t on a clipped, pooled spread, at `ALARM_LEVEL`); the
   nights after it outrank those before it (Mann-Whitney, exact, at `RANK_LEVEL`), which a few
   wild nights can't bring about; and the shift is beyond the smallest effect that matters with
   95 % confidence (one-sided, as an alarm is).
3. The nights from the split on are the new level, and the search starts there. So what was said
   on an earlier night is never taken back, and a change is news on one night only.

`benchmarks/nightly.py` measures what this finds, how late, and how often it is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from benchwright.errors import BenchwrightError
from benchwright.identity.fingerprint import Fingerprint, compare_fingerprints
from benchwright.judgement.statistics import LEVEL, exp, finite, median, t_quantile
from benchwright.judgement.verdict import Interval
from benchwright.spec.model import Direction, Metric, Scale

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

ALARM_LEVEL = 3e-4
"""One-sided level of the shift, for one series on one night. With it a series without a change
raises an alarm in at most 1 of 20 histories of 60 nights (benchmarks/nightly.py), whatever its
`min_effect`. It is shared by the series of a suite."""

RANK_LEVEL = 1e-3
"""Level of the rank test beside it: three nights must all be worse than 17 before them, five than
8. At twice that, two bad nights in a row became a change half as often again."""

UNDONE_RANK_LEVEL = 0.02
"""The same for a change for the better, which is no alarm: one that undoes a regression is to be
seen within days (three nights of the regression, five after it)."""

FIRST_NIGHTS = 8
"""Nights that a level needs in a new environment before a change of it can be told."""

CHANGED_NIGHTS = 3
"""Nights that a change needs: one bad night is none, nor are two."""

KNOWN_NIGHTS = 13
"""Nights in a new environment from which a change for the worse can be told at all: 8 before it
and 5 after it pass the rank test, if all of them are worse."""

MOST_NIGHTS = 90
"""Latest nights of a level that a new one is held against."""

_PENALTY = 1.0
_GAMMA = 0.5
"""Penalty and width of the kernel, in units of the night-to-night spread: low on purpose, since
the tests decide. Twice the penalty made no difference beyond 3 of 100 histories."""

_CLIP = 2.5
"""Robust standard deviations beyond which a night's distance counts no further in the spread."""
_CLIPPED = 1.03
"""What clipping there takes from the standard deviation of normal noise, given back."""
_MAD_TO_SIGMA = 1.4826
_DIFFERENCE_TO_SIGMA = 1 / 0.9539
"""Median absolute difference of two neighbours to the standard deviation, for normal noise."""

_BAD_NIGHT = 3.5
"""Spreads from its level at which a single night is pointed out."""

_DRIFT_NIGHTS = 5
"""Nights from which a steady climb can be told from a shift."""


class Standing(StrEnum):
    """Where a metric stands after the latest night."""

    NEW = "too few nights"
    STEADY = "steady"
    BETTER = "better"
    WATCH = "one bad night"
    WORSE = "worse"
    MISSING = "not measured"


class Shape(StrEnum):
    """How a level changed."""

    SHIFT = "shift"
    DRIFT = "drift"


@dataclass(frozen=True, slots=True)
class Night:
    """One night of one series.

    Attributes:
        date: The night, as ISO date.
        value: The arm's mean; None where the night gave none.
        error: Standard error of the mean within the run; None: unknown.
        run_id: The run; empty where there was none.
        commit: The code's commit; empty where it isn't known.
        ground: What may not change unseen: the fingerprint without the code, and the
            configuration, by name. Empty where there was no run.
        why: Why there is no value, as a sentence.
    """

    date: str
    value: float | None
    error: float | None = None
    run_id: str = ""
    commit: str = ""
    ground: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """Nights in one environment.

    Attributes:
        first, last: Indices of its nights.
        changed: What differs from the segment before, a sentence each; empty for the first.
    """

    first: int
    last: int
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a metric's level.

    Attributes:
        first: Index of the first night of the new level, or of the drift.
        found: Index of the night on which it was certain.
        before, after: The levels, in the metric's unit.
        effect: Ratio or difference of the two, by the metric's scale.
        interval: Of the effect.
        worse: Whether it goes in the bad direction.
        shape: A shift, or a drift where the nights say so clearly.
        nights_before, nights_after: What it stands on.
        run_before, run_after: The last run before, and the latest one after.
        commits: Commit of the last night before, and of the first (for a drift: the latest) one
            after; None where one of them isn't known.
    """

    first: int
    found: int
    before: float
    after: float
    effect: float | None
    interval: Interval
    worse: bool
    shape: Shape
    nights_before: int
    nights_after: int
    run_before: str
    run_after: str
    commits: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class History:
    """What is known of one metric of one arm, night by night.

    Attributes:
        metric: The metric.
        nights: Oldest first.
        segments: The environments.
        changes: Oldest first; never more than one for a night.
        standing: Where it stands.
        said: One sentence on it.
        level: The level of today; None: unknown.
        band: What a night of this level may be, from and to; None: unknown.
        open: The change that it is worse since, neither recovered nor accepted; None: none.
    """

    metric: Metric
    nights: tuple[Night, ...]
    segments: tuple[Segment, ...]
    changes: tuple[Change, ...]
    standing: Standing
    said: str
    level: float | None
    band: tuple[float, float] | None
    open: Change | None

    @property
    def news(self) -> Change | None:
        """The change that the latest night made certain; None: none."""
        last = self.changes[-1] if self.changes else None
        return last if last is not None and last.found == len(self.nights) - 1 else None


def judge_history(
    metric: Metric,
    nights: Sequence[Night],
    *,
    family: int = 1,
    accepted: Sequence[str] = (),
) -> History:
    """Judge a metric's history.

    Args:
        metric: The metric; its direction, scale and `min_effect` decide.
        nights: Oldest first.
        family: Series that are watched beside this one, itself included: they share the level.
        accepted: ISO dates: changes that began by then were accepted by a person.

    Raises:
        BenchwrightError: The library for change points isn't installed.
    """
    require_library()
    segments = environments(nights)
    changes: list[Change] = []
    for segment in segments:
        changes += _changes_of(metric, nights, segment, ALARM_LEVEL / max(family, 1))
    now = segments[-1] if segments else Segment(0, -1)
    current = [change for change in changes if change.first >= now.first]
    open_change = _still_worse(metric, nights, current, accepted)
    since = current[-1].first if current else now.first
    level, band = _band(metric, nights[since:])
    standing, said = _standing(metric, nights, now, current, open_change, level, band)
    return History(
        metric=metric,
        nights=tuple(nights),
        segments=segments,
        changes=tuple(changes),
        standing=standing,
        said=said,
        level=level,
        band=band,
        open=open_change,
    )


def environments(nights: Sequence[Night]) -> tuple[Segment, ...]:
    """Cut the nights where what they ran on changed. A field that is unknown changes nothing."""
    segments: list[Segment] = []
    first, changed = 0, ()  # type: tuple[int, tuple[str, ...]]
    ground: dict[str, str] = {}
    for index, night in enumerate(nights):
        if not night.ground:
            continue
        here = Fingerprint(dict(night.ground))
        rows = compare_fingerprints(Fingerprint(ground), here).differences if ground else ()
        if rows:
            segments.append(Segment(first, index - 1, changed))
            first = index
            changed = tuple(f"{row.field}: {row.left} became {row.right}" for row in rows)
            ground = {}
        unknown = set(here.unknown)
        ground |= {name: value for name, value in night.ground.items() if name not in unknown}
    if nights:
        segments.append(Segment(first, len(nights) - 1, changed))
    return tuple(segments)


# --- changes -----------------------------------------------------------------------------------


def _changes_of(
    metric: Metric, nights: Sequence[Night], segment: Segment, level: float
) -> list[Change]:
    """The changes inside one environment, found night by night."""
    import numpy as np

    indices = [
        index
        for index in range(segment.first, segment.last + 1)
        if (value := nights[index].value) is not None and math.isfinite(value)
    ]
    if len(indices) < FIRST_NIGHTS + CHANGED_NIGHTS:
        return []
    given = np.array([nights[index].value for index in indices], dtype=float)
    logarithmic = is_logarithmic(metric, given.tolist())
    scaled = np.log(given) if logarithmic else given
    floor = _floor(nights, indices, given, logarithmic)
    smallest = _smallest(metric, given.tolist(), logarithmic)
    changes: list[Change] = []
    start = 0
    for now in range(FIRST_NIGHTS + CHANGED_NIGHTS - 1, len(scaled)):
        begin = max(start, now + 1 - MOST_NIGHTS)
        window = scaled[begin : now + 1]
        needed = CHANGED_NIGHTS if changes else FIRST_NIGHTS
        split = find_split(
            window,
            level=level,
            smallest=smallest,
            floor=floor,
            before=needed,
            worse=1 if metric.direction is Direction.LOWER else -1,
        )
        if split is None:
            continue
        shape, offset = _shape(window, split.at)
        first = begin + offset
        after = scaled[first : now + 1] if shape is Shape.SHIFT else scaled[now - 2 : now + 1]
        before = scaled[begin:first]
        effect, half = split.shift, split.half
        if shape is Shape.DRIFT:
            # The latest nights say where a drift has come to; all of it together says less.
            effect = float(np.median(after) - np.median(before))
            half = split.half * math.sqrt((split.after + 3) / (2 * 3))
        back = exp if logarithmic else float
        earlier, later = float(np.median(before)), float(np.median(after))
        worse = (effect > 0) == (metric.direction is Direction.LOWER)
        night, previous = nights[indices[first]], nights[indices[first - 1]]
        latest = nights[indices[now]]
        after_commit = latest.commit if shape is Shape.DRIFT else night.commit
        changes.append(
            Change(
                first=indices[first],
                found=indices[now],
                before=back(earlier),
                after=back(later),
                effect=finite(back(effect)),
                interval=Interval(finite(back(effect - half)), finite(back(effect + half)), LEVEL),
                worse=worse,
                shape=shape,
                nights_before=len(before),
                nights_after=now + 1 - first,
                run_before=previous.run_id,
                run_after=latest.run_id,
                commits=(previous.commit, after_commit)
                if previous.commit and after_commit
                else None,
            )
        )
        start = first
    return changes


@dataclass(frozen=True, slots=True)
class Split:
    """A split of a window of nights that counts as a change, on the working scale.

    Attributes:
        at: Index of the first night after it.
        shift: Hodges-Lehmann estimate of the shift, after minus before.
        half: Half of the width of its 95 % interval.
        after: Nights after it.
    """

    at: int
    shift: float
    half: float
    after: int


def find_split(
    window: Values, *, level: float, smallest: float, floor: float, before: int, worse: int
) -> Split | None:
    """The best split of a window that passes all tests; None: there is none.

    Args:
        window: Values on the working scale (logarithms for a ratio), oldest first, shape (n,).
        level: One-sided level of the shift.
        smallest: Smallest shift that matters.
        floor: Least standard deviation that is believed, from the errors within the runs.
        before: Nights that are needed before a split.
        worse: 1 where larger values are worse, else -1.
    """
    import numpy as np
    from scipy.special import stdtr

    best, best_p = None, 1.0
    if len(window) < max(before, CHANGED_NIGHTS) + CHANGED_NIGHTS:
        return None
    # A bounded kernel finds that there is a change better than it finds its night.
    places = {at + by for at in proposals(window) for by in (-1, 0, 1)}
    for at in sorted(places):
        left, right = window[:at], window[at:]
        if len(left) < before or len(right) < CHANGED_NIGHTS:
            continue
        shift = float(np.median(np.subtract.outer(right, left)))
        freedom = len(window) - 2
        error = spread(left, right, floor) * math.sqrt(1 / len(left) + 1 / len(right))
        # Written out, since the shift of a count that never varies has no error to divide by.
        p = 0.0 if error == 0 else float(stdtr(freedom, -abs(shift) / error))
        surely = abs(shift) - t_quantile(freedom, LEVEL) * error
        if shift == 0 or p > level or surely <= smallest or p >= best_p:
            continue
        if abs(right[-1] - np.median(right)) > abs(right[-1] - np.median(left)):
            continue  # the latest night is back where it was: bad nights that are over
        if _outranked(left, right, shift) <= (
            RANK_LEVEL if shift * worse > 0 else UNDONE_RANK_LEVEL
        ):
            half = t_quantile(freedom, 0.5 + LEVEL / 2) * error
            best, best_p = Split(at, shift, half, len(right)), p
    return best


def require_library() -> None:
    """Raises BenchwrightError where the library for change points isn't installed."""
    if find_spec("ruptures") is None:
        raise BenchwrightError(
            "the library that finds change points isn't installed",
            expected="ruptures 1.1 or newer",
            hint="pip install 'benchwright[nightly]'",
        )


def proposals(window: Values) -> list[int]:
    """Where the level may have changed: the first index of each new level."""
    import numpy as np
    from ruptures import KernelCPD

    scale = float(np.median(np.abs(np.diff(window)))) * _DIFFERENCE_TO_SIGMA
    scale = scale or float(np.std(window))
    if not scale:
        return []
    scaled = ((window - np.median(window)) / scale).reshape(-1, 1)
    search = KernelCPD(kernel="rbf", params={"gamma": _GAMMA}, min_size=CHANGED_NIGHTS)
    return [int(at) for at in search.fit(scaled).predict(pen=_PENALTY)[:-1]]


def spread(left: Values, right: Values, floor: float) -> float:
    """Standard deviation of a night about its level, pooled over both sides of a split.

    Residuals are clipped, so that a bad night doesn't hide a change. Where neighbouring nights go
    together, fewer of them are independent: the spread is raised by sqrt((1 + r) / (1 - r)) for a
    lag-1 correlation r above its own standard error.
    """
    import numpy as np

    residuals = np.concatenate([left - np.median(left), right - np.median(right)])
    freedom = len(residuals) - 2
    robust = float(np.median(np.abs(residuals))) * _MAD_TO_SIGMA
    robust *= math.sqrt(len(residuals) / freedom)
    if robust > 0:
        residuals = np.clip(residuals, -_CLIP * robust, _CLIP * robust)
    squares = float((residuals**2).sum())
    sigma = _CLIPPED * math.sqrt(squares / freedom)
    if squares > 0:
        centred = residuals - residuals.mean()
        total = float((centred**2).sum())
        together = float((centred[1:] * centred[:-1]).sum()) / total if total > 0 else 0.0
        if 1 / math.sqrt(len(residuals)) < together < 1:
            sigma *= math.sqrt((1 + together) / (1 - together))
    return max(sigma, floor)


def _outranked(left: Values, right: Values, shift: float) -> float:
    """One-sided p-value of the rank test that the right side lies where the shift says."""
    from scipy.stats import mannwhitneyu

    low, high = (left, right) if shift > 0 else (right, left)
    return float(mannwhitneyu(high, low, alternative="greater", axis=None, method="exact").pvalue)


def _shape(window: Values, at: int) -> tuple[Shape, int]:
    """Whether a ramp fits better than a step, and where it begins.

    Both have a level, a size and a place: the smaller sum of absolute distances decides.
    """
    import numpy as np

    left, right = window[:at], window[at:]
    if len(right) < _DRIFT_NIGHTS:
        return Shape.SHIFT, at
    stepped = np.abs(left - np.median(left)).sum() + np.abs(right - np.median(right)).sum()
    best, begin = float(stepped), at
    shape = Shape.SHIFT
    for first in range(max(CHANGED_NIGHTS, at - len(right)), at + 1):
        level = float(np.median(window[:first]))
        climb = np.arange(1, len(window) - first + 1)
        slope = float(np.median((window[first:] - level) / climb))
        distance = float(
            np.abs(window[:first] - level).sum()
            + np.abs(window[first:] - level - slope * climb).sum()
        )
        if distance < best:
            best, begin, shape = distance, first, Shape.DRIFT
    return shape, begin


# --- scales ------------------------------------------------------------------------------------


def is_logarithmic(metric: Metric, values: Sequence[float]) -> bool:
    """Whether the metric's changes are ratios: its scale says so, and no value forbids it."""
    return metric.scale is Scale.RATIO and min(values, default=0.0) > 0


def _smallest(metric: Metric, values: Sequence[float], logarithmic: bool) -> float:
    """The smallest shift that matters, on the working scale."""
    if logarithmic:
        return math.log1p(metric.min_effect)
    if metric.scale is Scale.RATIO:
        return metric.min_effect * abs(median(values))
    return metric.min_effect


def _floor(
    nights: Sequence[Night], indices: Sequence[int], values: Any, logarithmic: bool
) -> float:
    """The typical standard error within a run: nights can't vary less than that."""
    errors = [
        error / abs(value) if logarithmic else error
        for index, value in zip(indices, values.tolist(), strict=True)
        if (error := nights[index].error) is not None and math.isfinite(error)
    ]
    return median(errors) if errors else 0.0


def _band(
    metric: Metric, nights: Sequence[Night]
) -> tuple[float | None, tuple[float, float] | None]:
    """The level of these nights, and what a single night of it may be."""
    values = [n.value for n in nights if n.value is not None and math.isfinite(n.value)]
    if not values:
        return None, None
    level = median(values)
    if len(values) < CHANGED_NIGHTS + 1:
        return level, None
    logarithmic = is_logarithmic(metric, values)
    scaled = [math.log(value) for value in values] if logarithmic else values
    centre = median(scaled)
    sigma = median([abs(value - centre) for value in scaled]) * _MAD_TO_SIGMA
    half = max(_BAD_NIGHT * sigma, _smallest(metric, values, logarithmic))
    low, high = centre - half, centre + half
    return level, (exp(low), exp(high)) if logarithmic else (low, high)


# --- where it stands ---------------------------------------------------------------------------


def _still_worse(
    metric: Metric, nights: Sequence[Night], changes: Sequence[Change], accepted: Sequence[str]
) -> Change | None:
    """The first worse change that was neither accepted nor undone by what came after it."""
    until = max(accepted, default="")
    begun: Change | None = None
    for change in changes:
        if nights[change.first].date <= until:
            begun = None
            continue
        if begun is None:
            begun = change if change.worse else None
        elif not change.worse and not _beyond(metric, begun.before, change.after):
            begun = None
    return begun


def _beyond(metric: Metric, before: float, after: float) -> bool:
    """Whether `after` is worse than `before` by more than the smallest effect that matters."""
    logarithmic = is_logarithmic(metric, [before, after])
    shift = math.log(after / before) if logarithmic else after - before
    if metric.direction is Direction.HIGHER:
        shift = -shift
    return shift > _smallest(metric, [before], logarithmic)


def _standing(
    metric: Metric,
    nights: Sequence[Night],
    now: Segment,
    changes: Sequence[Change],
    open_change: Change | None,
    level: float | None,
    band: tuple[float, float] | None,
) -> tuple[Standing, str]:
    latest = nights[-1] if nights else None
    known = sum(night.value is not None for night in nights[now.first :])
    if open_change is not None:
        return Standing.WORSE, (
            f"Worse since {nights[open_change.first].date}"
            f" ({open_change.shape}, certain on {nights[open_change.found].date})."
        )
    if latest is None or latest.value is None:
        return Standing.MISSING, (latest.why if latest else "") or "No night measured it."
    if known < KNOWN_NIGHTS:
        where = " in this environment" if now.first else ""
        return Standing.NEW, (
            f"{known} of {KNOWN_NIGHTS} nights{where} that a change needs to be told."
        )
    outside = band is not None and not band[0] <= latest.value <= band[1]
    if outside and level is not None and _beyond(metric, level, latest.value):
        return Standing.WATCH, "The latest night is worse than its level's; one is no change."
    if changes and not changes[-1].worse:
        return Standing.BETTER, f"Better since {nights[changes[-1].first].date}."
    return Standing.STEADY, "No change of its level."
