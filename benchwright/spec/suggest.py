"""The nearest known name: what someone who mistyped a name most likely meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

SUGGESTION = 0.6
"""Similarity (difflib's ratio) from which a name is offered; difflib's own default."""

MEANT = 0.75
"""Similarity from which an unknown name is taken for a mistyped known one: two letters lost or
added in a name of eight (`n_query` for `n_queries`)."""

LISTED = 12
"""Known names that an error lists at most."""


def nearest(name: str, known: Iterable[str], cutoff: float = SUGGESTION) -> str | None:
    """The known name that is most like `name`; None where none is like it.

    Case doesn't count. The last part of a dotted name stands for the whole of it, where only one
    known name ends so: `n_docs` is near `corpus.n_docs`.
    """
    names = {candidate.casefold(): candidate for candidate in known}
    wanted = name.casefold()
    if wanted in names:
        return names[wanted]
    tails = [whole for folded, whole in names.items() if folded.endswith(f".{wanted}")]
    if len(tails) == 1:
        return tails[0]
    matches = get_close_matches(wanted, names, n=1, cutoff=cutoff)
    return names[matches[0]] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """``did you mean `x`?``, for an error's hint; None where no known name is near."""
    match = nearest(name, known)
    return f"did you mean `{match}`?" if match is not None else None


def one_of(known: Iterable[str]) -> str:
    """``one of `a`, `b` ``, for what an error expected; long lists are cut."""
    names = list(known)
    if not names:
        return "none is known"
    listed = ", ".join(f"`{name}`" for name in names[:LISTED])
    if len(names) == 1:
        return listed
    rest = len(names) - LISTED
    return f"one of {listed}" + (f" and {rest} more" if rest > 0 else "")
