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
        ("speed --local --max-cost=-1", "-1.0 is not in the range"),
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


def test_the_run_itself_is_told_what_run_is_told(asked: Asked) -> None:
    words = (
        "--local --deployment night --on lab --insecure --max-cost 2.5 --detach --because go"
        " --hypothesis same"
    )
    for verb in ("accuracy", "speed"):
        assert call([verb, *words.split()]) == 0
    for _, options in asked:
        assert options == serving.RunOptions(
            hypothesis="same",
            because="go",
            detach=True,
            max_cost=2.5,
            deployment="night",
            on="lab",
            insecure=True,
        )


def test_the_variable_of_a_key_is_a_parameter_and_its_value_is_not(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_KEY", "sk-planted-90d1")
    assert call(["accuracy", "--local", "--api-key-env", "LAB_KEY"]) == 0
    ((config, options),) = asked
    assert config["params"]["target"] == {"endpoint": {"key_env": "LAB_KEY"}}
    assert "sk-planted" not in repr((config, options))


def test_a_key_whose_variable_is_not_set_is_refused_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["speed", "--local", "--api-key-env", "NOWHERE_SET", "--home", str(tmp_path / "home")]
    assert call(words) == 2
    said = capsys.readouterr().err
    assert "NOWHERE_SET" in said
    assert "isn't set" in said
    assert not (tmp_path / "home" / "runs").exists()


def test_a_host_is_named_for_a_deployment_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert call(["accuracy", "--local", "--on", "lab"]) == 2
    assert "no server is named that knows a host 'lab'" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--port", "8000"], ["--model", "org/m"]])
def test_a_deployment_takes_the_whole_target_from_a_block(
    capsys: pytest.CaptureFixture[str], flag: list[str]
) -> None:
    assert call(["accuracy", "--target", "lab", "--deployment", "accuracy", *flag]) == 2
    assert "takes the whole target from the block" in capsys.readouterr().err


def test_another_flows_deployment_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["accuracy", "--local", "--deployment", "benchmark/benchmark"]) == 2
    assert "expected: accuracy/NAME" in capsys.readouterr().err
