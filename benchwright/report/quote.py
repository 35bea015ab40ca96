"""A quote for the person who is to approve it: in the terminal, and in Prefect's pages."""

from __future__ import annotations

from collections.abc import Sequence

from benchwright.planning.quote import Alternative, CostItem, Quote
from benchwright.report import numbers
from benchwright.report.markdown import escape
from benchwright.report.plain import one_line

_SHOWN = 8
"""Alternatives that are shown; the cheapest ones."""


def usd(low: float, high: float | None = None) -> str:
    """Dollars for people: `0.53 USD`, `0.53 to 1.40 USD`; a cent is the smallest amount said."""
    first, second = _cents(low), _cents(low if high is None else high)
    return f"{first} USD" if first == second else f"{first} to {second} USD"


def _cents(value: float) -> str:
    return "0.01" if 0 < value < 0.01 else f"{value:.2f}"


def facts(quote: Quote, left_usd: float | None) -> list[tuple[str, str]]:
    """What a person needs to know, in the order in which they ask it."""
    rows = [
        ("Cost", usd(quote.low_usd, quote.high_usd)),
        ("Provider", quote.provider),
        ("Hardware", quote.hardware),
        ("Duration", _span(quote)),
        ("Prices", quote.priced),
    ]
    if quote.basis:
        rows.append(("Basis", quote.basis))
    left = "no budget is set" if left_usd is None else f"{usd(left_usd)} before this run"
    rows.append(("Remaining budget", left))
    return rows


def _span(quote: Quote) -> str:
    low, high = numbers.duration(quote.low_s), numbers.duration(quote.high_s)
    return low if low == high else f"{low} to {high}"


def render_quote(
    quote: Quote, *, title: str, left_usd: float | None = None, warning: str = ""
) -> str:
    """A quote as Markdown.

    Args:
        quote: The quote.
        title: What it is for.
        left_usd: What is left of the budget; None: there is none.
        warning: A sentence that comes first.
    """
    parts = [f"## {escape(title)}"]
    if warning:
        parts.append(f"**Warning: {escape(warning)}**")
    # Paragraphs only: the form in Prefect's pages makes one line of a table's or a list's lines.
    parts += [f"**{name}:** {escape(value)}" for name, value in facts(quote, left_usd)]
    parts.append("**What it is made of**")
    parts += [escape(_item(item)) for item in quote.items]
    if quote.alternatives:
        parts.append("**Alternatives, free ones first**")
        parts += [escape(_alternative(one)) for one in _first(quote)]
    return "\n\n".join(parts) + "\n"


def quote_lines(quote: Quote, left_usd: float | None = None) -> list[str]:
    """A quote as lines of plain text."""
    width = max(len(name) for name, _ in facts(quote, left_usd)) + 2
    lines = [f"{name:<{width}}{one_line(value)}" for name, value in facts(quote, left_usd)]
    lines += [f"  {one_line(_item(item))}" for item in quote.items]
    if quote.alternatives:
        lines.append("Alternatives, free ones first:")
        lines += [f"  {one_line(_alternative(one))}" for one in _first(quote)]
    return lines


def _first(quote: Quote) -> Sequence[Alternative]:
    return quote.ordered[:_SHOWN]


def _item(item: CostItem) -> str:
    how = f" ({item.basis})" if item.basis else ""
    return f"{item.what}: {usd(item.low_usd, item.high_usd)}{how}"


def _alternative(one: Alternative) -> str:
    cost = "free" if one.high_usd == 0 else usd(one.low_usd, one.high_usd)
    return f"{one.what}: {cost}" + (f" ({one.note})" if one.note else "")
