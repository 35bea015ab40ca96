"""The verbs `accuracy` and `speed`: what their options stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cli import serving
from cli.main import call
from domains.serving.request import accuracy_request, speed_request

Asked = list[tuple[dict[str, Any], serving.RunOptions]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What `start` was handed, instead of running it."""
    seen: Asked = []

    def start(config: Mapping[str, Any], options: serving.RunOptions) -> int:
        seen.append((dict(config), options))
        return 0

    monkeypatch.setattr(serving, "start", start)
    return seen


def test_accuracy_hands_over_a_configuration_of_its_domain(asked: Asked, tmp_path: Path) -> None:
    words = (
        "accuracy --host tpu-1 --user me --ssh-port 2222 --port 8000 --model org/m --chips 4"
        " --dataset everyday --limit 0.5 --max-tokens 256 -g top_p=0.9 -g seed=7 --json"
    )
    assert call([*words.split(), "--dataset", f"gsm8k={tmp_path}"]) == 0
    ((config, options),) = asked
    request = accuracy_request(config["params"])
    assert config["domain"] == "accuracy"
    assert request.target.ssh is not None
    assert (request.target.ssh.user, request.target.ssh.port) == ("me", 2222)
    assert (request.target.endpoint.port, request.target.model) == (8000, "org/m")
    assert request.evaluate.datasets == ("everyday", f"gsm8k={tmp_path}")
    assert request.evaluate.limit == 0.5
    assert request.generation == {"top_p": 0.9, "seed": 7, "max_tokens": 256}
    assert options.as_json


def test_a_relative_folder_of_data_becomes_absolute(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["accuracy", "--local", "--dataset", "gsm8k=data"]) == 0
    assert asked[0][0]["params"]["evaluate"]["datasets"] == [f"gsm8k={tmp_path}/data"]


def test_speed_hands_over_its_load(asked: Asked) -> None:
    assert (
        call(
            [
                "speed",
                "--local",
                "--batch-sizes",
                "1,4",
                "--rates",
                "0.5,2",
                "--ttft-limit-ms",
                "300",
            ]
        )
        == 0
    )
    load = speed_request(asked[0][0]["params"]).load
    assert (load.batch_sizes, load.rates, load.closed_loop) == ((1, 4), (0.5, 2.0), True)
    assert load.ttft_limit_ms == 300


def test_rates_alone_are_an_open_loop_only(asked: Asked) -> None:
    assert call(["speed", "--local", "--rates", "2"]) == 0
    assert speed_request(asked[0][0]["params"]).load.closed_loop is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("accuracy", "it must be said where the server is"),
        ("accuracy --local --host h", "more than one option says where the server is"),
        ("speed --local --batch-sizes two", "'two' is no list of numbers"),
        ("accuracy --local -g top_p", "'top_p' is no KEY=VALUE"),
    ],
)
def test_what_can_not_be_understood_is_refused_in_words(
    asked: Asked, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert call(words.split()) == 2
    assert said in capsys.readouterr().err
    assert asked == []


def test_a_misspelled_generation_key_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["accuracy", "--local", "-g", "max_token=5", "--home", str(tmp_path / "home")]
    assert call(words) == 2
    assert "did you mean `max_tokens`?" in capsys.readouterr().err
    assert not (tmp_path / "home" / "runs").exists()


@pytest.mark.parametrize("verb", ["accuracy", "speed"])
def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert call([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"benchwright {verb} --host tpu-1" in text
    assert "Exit codes" in text
