"""Lowering a tag. Only running again raises one."""

from __future__ import annotations

from benchwright.errors import BadInput, GateRefused, Where
from benchwright.judgement.verdict import Tag

LOWER: dict[Tag, frozenset[Tag]] = {
    Tag.RELIABLE: frozenset({Tag.QUALIFIED, Tag.EXPLORATORY, Tag.UNRELIABLE}),
    Tag.QUALIFIED: frozenset({Tag.EXPLORATORY, Tag.UNRELIABLE}),
    Tag.EXPLORATORY: frozenset({Tag.UNRELIABLE}),
    Tag.UNRELIABLE: frozenset(),
}
"""What a tag may be lowered to. EXPLORATORY says too little, UNRELIABLE says something wrong."""


def parse_tag(text: str) -> Tag:
    """The tag of that name, in any case.

    Raises:
        BadInput: There is none.
    """
    try:
        return Tag(text.strip().upper())
    except ValueError:
        raise BadInput(
            f"there is no tag '{text}'",
            where=Where(key="TAG"),
            expected=f"one of {', '.join(Tag)}",
        ) from None


def check_lowering(now: Tag | None, to: Tag) -> None:
    """Refuse a change of a tag that doesn't lower it.

    Args:
        now: The run's tag; None where it has none yet.
        to: The tag asked for.

    Raises:
        GateRefused: `to` isn't lower, or the run wasn't judged yet.
    """
    if now is None:
        raise GateRefused(
            f"a run that has no tag yet can't be made {to}",
            expected="a run that was judged",
            hint="wait for its end: benchwright status",
        )
    if to not in LOWER[now]:
        below = sorted(LOWER[now])
        raise GateRefused(
            f"a person can't make a run that is {now} {to}: a tag is raised by running again only",
            expected=f"one of {', '.join(below)}" if below else "nothing: it can't be lowered",
            hint="run it again, and let the second run confirm the first",
        )
