"""Prices: from a dated file, with the user's own over it, and unknown where nobody wrote one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchwright.errors import BadInput
from benchwright.execution.pricing import VARIABLE, Price, ProviderPrices, read_prices


def own(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    return {VARIABLE: str(path)}


def test_the_shipped_prices_have_a_date_and_every_provider() -> None:
    prices = read_prices({})
    assert re.search(r"prices of \d{4}-\d\d ", prices.origin)
    assert {"local", "modal", "hf-jobs", "hf-endpoints", "beam"} <= set(prices.providers)
    assert prices.provider("modal").gpu_hour("H100") == Price(3.95, 3.95)
    assert prices.provider("hf-jobs").gpu_hour("t4") == Price(0.40, 0.60)


def test_a_price_that_nobody_wrote_is_unknown() -> None:
    assert read_prices({}).local.gpu_hour("NVIDIA H200") is None
    assert read_prices({}).provider("beam").gpu_hour("H200") is None


def test_the_users_own_prices_come_first_and_the_rest_stays(tmp_path: Path) -> None:
    environ = own(
        tmp_path,
        "date: 2026-11\nproviders:\n  local: {gpus: {NVIDIA H200: 3.2}, machine_hour: 0.5}\n"
        "  modal: {gpus: {H100: 1.0}}\n",
    )
    prices = read_prices(environ)
    assert prices.local.gpu_hour("NVIDIA H200") == Price(3.2, 3.2)
    assert prices.local.machine_hour == 0.5
    assert prices.provider("modal").gpu_hour("H100") == Price(1.0, 1.0)
    assert prices.provider("modal").gpu_hour("T4") == Price(0.59, 0.59)
    assert prices.provider("modal").core_second is not None
    assert "2026-11" in prices.origin
    assert "shipped" in prices.origin


def test_a_pattern_prices_a_family_of_devices_but_no_slice_of_one() -> None:
    prices = ProviderPrices(gpus={"NVIDIA A100*": Price(2.0, 2.0)})
    assert prices.gpu_hour("NVIDIA A100-SXM4-80GB") == Price(2.0, 2.0)
    assert prices.gpu_hour("NVIDIA A100-SXM4-40GB MIG 1g.5gb") is None
    slices = ProviderPrices(gpus={"*MIG 1g.5gb": Price(0.3, 0.3)})
    assert slices.gpu_hour("NVIDIA A100-SXM4-40GB MIG 1g.5gb") == Price(0.3, 0.3)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("providers: {local: {gpus: {X: 1}}}\n", 1, "without a date"),
        ("date: 2026-11\nproviders: [1]\n", 2, "holds no prices"),
        ("date: 2026-11\nproviders:\n  local:\n    gpu: {X: 1}\n", 4, "'gpu' is no price"),
        ("date: 2026-11\nproviders:\n  local:\n    gpus:\n      X: -1\n", 5, "-1 is no price"),
        ("date: 2026-11\nproviders:\n  local:\n    gpus:\n      X: [2, 1]\n", 5, "no price"),
        ("date: 2026-11\nproviders:\n  local:\n    machine_hour: free\n", 4, "no price"),
    ],
)
def test_a_bad_price_file_names_file_line_and_key(
    tmp_path: Path, text: str, line: int, words: str
) -> None:
    with pytest.raises(BadInput, match=words) as refused:
        read_prices(own(tmp_path, text))
    assert refused.value.where is not None
    assert refused.value.where.line == line
    assert str(refused.value.where.file).endswith("prices.yaml")


def test_a_missing_price_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        read_prices({VARIABLE: str(tmp_path / "none.yaml")})


def test_an_unknown_provider_is_named_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="no prices are known of the provider 'azure'") as refused:
        read_prices({}).provider("azure")
    assert "modal" in str(refused.value)
