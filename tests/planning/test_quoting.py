"""What a plan is estimated to cost on this machine, from the user's own prices."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchwright.errors import BadInput
from benchwright.execution.pricing import VARIABLE, read_prices
from benchwright.planning.plan import Plan, make_plan
from benchwright.planning.quote import Quote
from benchwright.planning.quoting import UNKNOWN_S, quote_plan, read_quote, write_quote
from benchwright.report.quote import quote_lines, render_quote, usd
from cli.options import resolve_target
from tests.cli.conftest import experiment


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment that names a price file: the machine costs 36 USD an hour."""
    file = tmp_path / "prices.yaml"
    file.write_text("date: 2026-11\nproviders: {local: {machine_hour: 36}}\n")
    return {**os.environ, VARIABLE: str(file)}


def _plan(tmp_path: Path, **changes: Any) -> Plan:
    config = experiment(tmp_path / "x", **changes)
    return make_plan(resolve_target(str(config), (), None), tmp_path / "home", os.environ)


def test_without_prices_of_ones_own_nothing_has_a_cost(tmp_path: Path) -> None:
    assert not read_prices({}).local.gpus, "quote_plan relies on it"
    assert read_prices({}).local.machine_hour is None
    assert quote_plan(_plan(tmp_path), {}) is None


def test_what_is_not_known_is_reckoned_to_its_deadline(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    quote = quote_plan(_plan(tmp_path), environ)
    assert quote is not None
    launches = 2 + 8  # two builds; two arms with a warm-up and three replicates
    assert quote.high_usd == pytest.approx(36 * launches * UNKNOWN_S / 3600)
    assert quote.low_usd == 0
    bounded = quote_plan(_plan(tmp_path, budget={"wall_s": 100}), environ)
    assert bounded is not None
    assert bounded.high_s == 100


def test_the_quote_says_the_date_of_its_prices_and_a_free_way_first(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    quote = quote_plan(_plan(tmp_path, replication={"replicates": 10}), environ)
    assert quote is not None
    assert "2026-11" in quote.priced
    assert [one.high_usd > 0 for one in quote.ordered] == [False, True]
    assert quote.usd_per_hour == 36


def test_a_quote_is_read_back_as_it_was_written(tmp_path: Path, environ: dict[str, str]) -> None:
    quote = quote_plan(_plan(tmp_path), environ)
    write_quote(tmp_path, quote)
    assert read_quote(tmp_path) == quote
    assert (tmp_path / "quote.json").stat().st_mode & 0o777 == 0o600
    write_quote(tmp_path / "none", None)
    assert read_quote(tmp_path / "none") is None
    (tmp_path / "quote.json").write_text('{"items": 1}')
    with pytest.raises(BadInput, match="holds no quote"):
        read_quote(tmp_path)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.0, 0.0, "0.00 USD"),
        (0.0, 0.004, "0.00 to 0.01 USD"),
        (0.001, 0.002, "0.01 USD"),
        (1.004, 1.001, "1.00 USD"),
        (0.53, 1.4, "0.53 to 1.40 USD"),
    ],
)
def test_a_cent_is_the_smallest_amount_and_never_nothing(
    low: float, high: float, said: str
) -> None:
    assert usd(low, high) == said


def test_what_a_provider_writes_is_text(tmp_path: Path, environ: dict[str, str]) -> None:
    quote = quote_plan(_plan(tmp_path), environ)
    assert quote is not None
    evil: Quote = replace(quote, provider="<script>x</script>\n| a | b |\x1b[2J")
    shown = render_quote(evil, title="<img src=x>")
    assert "<script" not in shown
    assert "<img" not in shown
    assert not any("\x1b" in line or "\n" in line for line in quote_lines(evil))
