"""The sweep of a small trained network that the tests of this folder share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "recipes" / "examples" / "digits"
MODEL = str(DIGITS / "digits.onnx")
SAMPLES = f"{DIGITS / 'calibration.npz'}[:16]"
EVALUATION = f"{DIGITS / 'evaluation.npz'}[:64]"
METHODS = 'sweep.space={"calibrate.method": [max, mse], "calibrate.weights": [max, mse]}'


def words(out: Path, *more: str, speed: str = "none", space: str = METHODS) -> list[str]:
    """The command line of a sweep over `space`, with two choices of nodes kept float."""
    settings = (space, "sweep.keep_float=[0, 2]", f"sweep.speed={speed}", "build.stack_mib=64")
    return [
        *("sweep", MODEL, "--samples", SAMPLES, "--eval-samples", EVALUATION, "--out", str(out)),
        *(word for setting in settings for word in ("--set", setting)),
        *more,
    ]


def result(out: Path) -> dict[str, Any]:
    """The data of sweep.json."""
    data: dict[str, Any] = json.loads((out / "sweep.json").read_text("utf-8"))["data"]
    return data


def essence(data: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The Pareto set without trial numbers, which depend on who was quicker."""
    return [
        (tuple(t["outcome"]["settings"]), t["outcome"]["accuracy"], t["outcome"]["ms"])
        for t in data["pareto"]
    ]


def settings_of(data: dict[str, Any]) -> list[tuple[str, ...]]:
    """The settings of every finished trial, sorted."""
    return sorted(
        tuple(trial["outcome"]["settings"]) for trial in data["trials"] if trial["state"] == "complete"
    )
