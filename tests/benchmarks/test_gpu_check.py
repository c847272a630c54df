"""The check of a GPU, as far as it goes without one: wheels in parts, and going on where it stopped."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.shared import ROOT, benchmark

check = benchmark("gpu_check")


def test_a_wheel_in_parts_is_joined_to_the_same_bytes(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    wheel = source / "big-1-py3-none-any.whl"
    content = bytes(range(256)) * 17
    wheel.write_bytes(content)
    check.split("1KiB", [wheel])
    assert len(list(source.glob("*.part-*"))) == 5
    assert max(part.stat().st_size for part in source.glob("*.part-*")) == 1024
    wheel.unlink()
    (made,) = check.join(source, target)
    assert made.read_bytes() == content
    wheel.write_bytes(content)
    assert check.join(source, target) == [wheel]


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_parts_that_do_not_give_the_whole_are_refused(damage: str, tmp_path: Path) -> None:
    wheel = tmp_path / "big-1-py3-none-any.whl"
    wheel.write_bytes(bytes(3000))
    check.split("1KiB", [wheel])
    wheel.unlink()
    part = tmp_path / f"{wheel.name}.part-001"
    part.unlink() if damage == "missing" else part.write_bytes(b"x" * 1024)
    with pytest.raises(SystemExit, match="copy them again"):
        check.join(tmp_path, tmp_path / "out")


def test_finished_steps_are_not_done_again_and_late_ones_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def steps(_options: Namespace, _work: Path) -> Any:
        for name in ("one", "two"):
            yield name, lambda name=name: done.append(name) or {"name": name}

    monkeypatch.setattr(check, "steps", steps)
    options = Namespace(out=tmp_path / "found.json", device="cpu", quick=True, minutes=-1.0)
    assert check.check(options)["left"] == ["one", "two"]
    options.minutes = 5.0
    assert check.check(options)["left"] == []
    check.check(options)
    assert done == ["one", "two"]
    assert list(json.loads(options.out.read_text())["steps"]) == ["one", "two"]
    options.device = "cuda"
    with pytest.raises(SystemExit, match="another check"):
        check.check(options)


def test_ranges_of_two_devices_are_compared_by_their_largest_difference() -> None:
    left = {"seconds": 2.0, "amax": {"a": 1.0, "b": 4.0}, "seen": {"a": 1.0}}
    right = {"seconds": 1.0, "amax": {"a": 1.0, "b": 4.4}, "seen": {"a": 1.0}}
    found = check.compared(left, right)
    assert found["speedup"] == 2.0
    assert found["amax"]["where"] == "b"
    assert found["amax"]["largest"] == pytest.approx(0.1)
    assert found["seen"]["beyond_0.1_percent"] == 0


def test_choices_of_two_devices_are_compared_tensor_by_tensor() -> None:
    left = {
        "seconds": 3.0,
        "choices": {"a": "max", "b": "mse"},
        "amax": {"a": 1.0, "b": 4.0},
        "sqnr_db": 30.0,
    }
    right = {
        "seconds": 1.5,
        "choices": {"a": "max", "b": "max"},
        "amax": {"a": 1.0, "b": 4.1},
        "sqnr_db": 29.0,
    }
    found = check.agreed(left, right)
    assert found["other_choice"] == ["b"]
    assert found["beyond_1_percent"] == 1
    assert (found["sqnr_db"], found["speedup"]) == ([30.0, 29.0], 2.0)


def test_the_table_of_verified_holds_the_recorded_figures() -> None:
    recorded = json.loads((ROOT / "benchmarks/data/gpu_check.json").read_text())
    guide = (ROOT / "docs/verified.md").read_text()
    for kind, title in (
        ("calibrated", "`calibrate` (histograms)"),
        ("quantized", "`quantize` (`auto`)"),
        ("by onnxruntime", "onnxruntime's"),
    ):
        (row,) = (line for line in guide.splitlines() if line.startswith(f"| {title}"))
        told = [cell.strip() for cell in row.strip("|").split("|")[1:]]
        seconds = [
            [recorded["seconds"][f"{name} {kind} on {device}"] for device in ("cpu", "cuda")]
            for name in ("resnet50", "vit", "bert")
        ]
        assert told == [f"{cpu:.1f} → {gpu:.1f}" for cpu, gpu in seconds]
    assert not any(pair["other_choice"] for pair in recorded["agreed"].values())
    assert max(pair["amax"]["largest"] for pair in recorded["compared"].values()) < 4e-5


def test_figures_of_two_devices_stand_side_by_side() -> None:
    left, right = {"sqnr_db": 65.0, "mib": None}, {"sqnr_db": 64.9, "failed": "no"}
    assert check.set_side_by_side(left, right) == {
        "sqnr_db": [65.0, 64.9],
        "mib": [None, None],
        "failed": [None, "no"],
    }
