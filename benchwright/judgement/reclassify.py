"""Lowering a tag. Only running again raises one."""

from __future__ import annotations

from benchwright.errors import BadInput, GateRefused
from benchwright.judgement.verdict import Tag

LOWER: dict[Tag, frozenset[Tag]] = {
    Tag.RELIABLE: frozenset({Tag.QUALIFIED, Tag.EXPLORATORY, Tag.UNRELIABLE}),
    Tag.QUALIFIED: frozenset({Tag.EXPLORATORY, Tag.UNRELIABLE}),
    Tag.EXPLORATORY: frozenset({Tag.UNRELIABLE}),
    Tag.UNRELIABLE: frozenset(),
}
"""What a tag may be lowered to. EXPLORATORY says too little, UNRELIABLE says something wrong."""


def lowered(run_id: str, now: Tag | None, to: Tag, reason: str) -> Tag:
    """The tag after a person lowers it.

    Args:
        run_id: The run, for the refusal.
        now: Its tag.
        to: The tag asked for.
        reason: Why, in the person's words.

    Returns:
        `to`.

    Raises:
        BadInput: Without a reason.
        GateRefused: Where `to` isn't lower, or the run has no tag yet.
    """
    if not reason.strip():
        raise BadInput(
            "a tag is lowered with a reason only",
            expected="--reason TEXT",
            hint=f'benchwright reclassify {run_id} {to} --reason "..."',
        )
    if now is None:
        raise GateRefused(
            f"{run_id} has no tag yet",
            expected="a run that was judged",
            hint=f"benchwright status {run_id}",
        )
    if not may_become(now, to):
        below = sorted(LOWER[now])
        raise GateRefused(
            f"{run_id} is {now}; a person can't make it {to}: a tag is raised by running again "
            "only",
            expected=f"one of {', '.join(below)}" if below else "nothing: it can't be lowered",
            hint="run it again, and let the second run confirm the first",
        )
    return to


def may_become(now: Tag, to: Tag) -> bool:
    """Whether a person may change one tag to the other."""
    return to in LOWER[now]
