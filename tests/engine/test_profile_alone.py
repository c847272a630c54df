"""A profile alone answers where the time is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.core.engine import Role
from qdqtool.engine.view import read_timed
from qdqtool.errors import InputFileError
from tests.shared import shared

ROWS = [
    {"count": 10},
    {"name": "/a/Conv + PWN(/a/act/Relu)", "timeMs": 6.0, "averageMs": 0.6, "percentage": 60.0},
    {
        "name": "Reformatting CopyNode for Output Tensor 0 to /a/Conv",
        "timeMs": 3.0,
        "averageMs": 0.3,
        "percentage": 30.0,
    },
    {"name": "/b/Slice", "timeMs": 1.0, "averageMs": 0.1, "percentage": 10.0},
]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(ROWS))
    return path


def test_rows_become_layers_of_which_only_the_name_and_the_time_are_known(profile: Path) -> None:
    engine, times = read_timed(profile)
    assert times is not None
    assert [layer.role for layer in engine.layers] == [Role.COMPUTE, Role.QDQ, Role.OTHER]
    assert "copies and reformats: 1 of 3 layers, 30.0% of the time" in engine.notes


@pytest.mark.parametrize("words", [["show"], ["top", "-n", "2"], ["about"]])
def test_a_command_answers_from_a_profile(
    words: list[str], profile: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["engine", *words, str(profile)]) == 0
    out = capfd.readouterr().out
    assert "/a/Conv" in out
    assert "0.6" in out


def test_nothing_is_claimed_of_costs_and_types(profile: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["engine", "show", str(profile), "--json"]) == 0
    layers = json.loads(capfd.readouterr().out)["data"]["layers"]
    assert {layer["bytes"] for layer in layers} == {None}
    assert {layer["precision"] for layer in layers} == {"unknown"}


def test_two_profiles_are_compared_layer_by_layer(
    profile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    faster = tmp_path / "faster.json"
    faster.write_text(json.dumps(ROWS).replace("0.6,", "0.2,"))
    assert run(["engine", "diff", str(profile), str(faster)]) == 0
    out = capfd.readouterr().out
    assert "1 groups of compute layers are aligned" in out or "1 group of compute layers" in out
    assert "of these INT8" in out


def test_a_file_that_is_neither_says_so_as_layer_information_does(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("[1]")
    with pytest.raises(InputFileError, match="holds no layer information"):
        read_timed(path)


@pytest.mark.shared
def test_the_handed_profile_has_18_rows_by_time(capfd: pytest.CaptureFixture[str]) -> None:
    path = shared("cases/handed/yolo_profile.json")
    assert run(["engine", "show", str(path)]) == 0
    said = capfd.readouterr()
    assert "18 of 18 layers" in said.out
    assert "copies and reformats: 7 of 18 layers" in said.err
    assert run(["engine", "about", str(path)]) == 0
    assert "layers: 18" in capfd.readouterr().out
    assert run(["engine", "top", str(path), "-n", "18"]) == 0
    said = capfd.readouterr()
    assert "18 of 18 layers" in said.out
    assert "copies and reformats: 7 of 18 layers" in said.err
