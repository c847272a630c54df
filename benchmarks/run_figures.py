"""Measures what the headers of recipes state, and says which figures are no longer true.

    python benchmarks/run_figures.py                        # all recipes; part of `make figures`
    python benchmarks/run_figures.py conv-int8 llm-nvfp4    # these alone

A header states rows such as

    # Measured with calibrate.method=percentile (TensorRT for RTX 1.7.1, SM86; ...)
    #   ResNet-20, CIFAR-10, 2000 images     top-1: FP32 81.3, INT8 81.8 (-0.1 to +0.9); SQNR 26.5 dB
    #       engine 2.84 MiB, 41 kernels; 20 of 20 nodes as asked

The heading names the settings and the GPU, a line `with Conv: place.ops=[...]` further settings of the rows below it, a row
the network (`NETWORKS`: what models.yaml runs, or the embedded example). A figure is true while FP32 is what it says, to a tenth
of a point, and the change that is measured lies in the interval, give or take one sample (processors round differently);
`FIGURES` says how far the others may be off. Networks that are not part of the project are left out, and named, where their
folder is absent. Recipes for training have `figures.py`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from models import DEFAULT_MODELS, HERE, command
from ruamel.yaml import YAML

RECIPES = HERE.parent / "recipes"
DIGITS = "digits"
NETWORKS = {
    "ResNet-20": "cifar10_resnet20",
    "ViT": "vit_cifar10_pgd_2_3_16",
    "DS-CNN": "kws_dscnn",
    "YOLOX-nano": "yolox_nano",
    "examples/digits": DIGITS,
    "digits": DIGITS,
}
"""Folders of models.yaml by the name in the header, and the embedded example."""
_HEADING = re.compile(r"^# Measured(?: with (?P<settings>[\w.=]+))? \(.*?SM(?P<sm>\d+)")
_VARIANT = re.compile(r"^#\s+with [^:]+: (?P<setting>[\w.]+=\S+)$")
_ROW = re.compile(
    r"^#\s+(?P<network>\S.*?)\s+(?:top-1:?\s+)?FP32 (?P<reference>[\d.]+), (?P<label>[A-Za-z0-9 ]+?) (?P<value>[\d.]+) "
    r"\((?P<low>[-+][\d.]+) to (?P<high>[-+][\d.]+)\)"
)


@dataclass(frozen=True)
class Figure:
    """A kind of figure beside the accuracy.

    Attributes:
        pattern: how a header states it; its groups are the values.
        read: the same values from the summary of a report.
        slack: how far one may be off, in its unit.
    """

    pattern: re.Pattern[str]
    read: Callable[[dict[str, Any]], tuple[float, ...]]
    slack: float


def _as_asked(summary: dict[str, Any]) -> tuple[float, ...]:
    """Nodes that run in the format that they were asked to, and all that were asked for another than float."""
    asked = {name: count for name, count in summary["requested"].items() if name != "float"}
    got = summary["realised"]
    return sum(min(count, got.get(name, 0)) for name, count in asked.items()), sum(asked.values())


FIGURES = {
    "SQNR in dB": Figure(
        re.compile(r"SQNR ([\d.]+) dB"), lambda summary: (summary["accuracy"]["sqnr_db"],), 0.3
    ),
    "engine in MiB": Figure(
        re.compile(r"engine ([\d.]+) MiB"), lambda summary: (summary["engine_bytes"] / 2**20,), 0.05
    ),
    "kernels": Figure(re.compile(r"(\d+) kernels"), lambda summary: (summary["kernels"],), 0),
    "nodes as asked": Figure(re.compile(r"(\d+) of (\d+) nodes as asked"), _as_asked, 0),
}
"""SQNR differs with the processor by what onnxruntime's kernels round, engines by what the builder writes of the machine."""


@dataclass(frozen=True)
class Stated:
    """A row of a header.

    Attributes:
        recipe: name of the recipe.
        network: the row's first words.
        settings: what the heading says it was measured with.
        sm: GPU architecture, "86".
        reference, value: top-1 in percent, float and quantized.
        low, high: interval of the change, in points.
        others: values of the FIGURES that the row and the lines below it state, by their names.
    """

    recipe: str
    network: str
    settings: tuple[str, ...]
    sm: str
    reference: float
    value: float
    low: float
    high: float
    others: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def model(self) -> str:
        """The folder of models.yaml.

        Raises:
            KeyError: nobody said what the row is about.
        """
        return next(folder for name, folder in NETWORKS.items() if self.network.startswith(name))


def stated(recipe: Path) -> list[Stated]:
    """The rows in the header of a recipe, in its order."""
    found: list[Stated] = []
    settings: tuple[str, ...] = ()
    sm = ""
    for line in recipe.read_text("utf-8").partition("# When to take another")[0].splitlines():
        if heading := _HEADING.match(line):
            settings = (heading["settings"],) if heading["settings"] else ()
            sm = heading["sm"]
        elif variant := _VARIANT.match(line):
            settings = (*settings, variant["setting"])
        elif row := _ROW.match(line):
            figures = (float(row[name]) for name in ("reference", "value", "low", "high"))
            found.append(Stated(recipe.stem, row["network"], settings, sm, *figures))
        if found:
            for name, figure in FIGURES.items():
                if match := figure.pattern.search(line):
                    found[-1].others[name] = tuple(map(float, match.groups()))
    return found


def words(row: Stated, out: Path, models: Path) -> list[str]:
    """The call that measures a row."""
    changes = [word for change in row.settings for word in ("--set", change)]
    if row.model == DIGITS:
        place = RECIPES / "examples" / "digits"
        given = {"--samples": "calibration.npz", "--eval-samples": "evaluation.npz", "--labels": "labels.npy"}
        call = [sys.executable, "-m", "qdqtool", "run", str(place / "digits.onnx"), "--recipe", row.recipe]
        call += [word for name, file in given.items() for word in (name, str(place / file))]
        call += ["--out", str(out / row.model), "--json"]
    else:
        entries = YAML(typ="safe").load((HERE / "models.yaml").read_text("utf-8"))
        options = argparse.Namespace(models=models, out=out, quick=False, set=[])
        call = command(row.model, {**entries[row.model], "recipe": row.recipe}, options)
    return [*call, *changes, "--sm", row.sm]


def measured(row: Stated, models: Path) -> dict[str, Any]:
    """The summary of the report; its `accuracy` has `reference` and `int8` in percent, and `interval` of the change in points."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        subprocess.run(
            words(row, out, models), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        report = json.loads((out / row.model / "report.json").read_text("utf-8"))
    summary: dict[str, Any] = report["data"]["summary"]
    return summary


def judged(row: Stated, summary: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """What was measured and stated of each figure of a row, in words, and whether it still holds."""
    found = summary["accuracy"]
    reference, value, (low, high) = found["reference"], found["int8"], found["interval"]
    sample = 100 / found["samples"]
    said = f"stated {row.reference}, {row.value} ({row.low:+} to {row.high:+})"
    holds = (
        abs(reference - row.reference) <= 0.1 and row.low - sample <= value - reference <= row.high + sample
    )
    yield f"FP32 {reference:.2f}, {value:.2f} ({low:+.1f} to {high:+.1f}); {said}", holds
    for name, values in row.others.items():
        now = FIGURES[name].read(summary)
        holds = all(abs(a - b) <= FIGURES[name].slack + 0.005 for a, b in zip(now, values, strict=True))
        yield f"{name} {_spelled(now)}; stated {_spelled(values)}", holds


def _spelled(values: tuple[float, ...]) -> str:
    return " of ".join(f"{value:.4g}" for value in values)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", help="names; default: all that state something")
    parser.add_argument("--models", type=Path, default=DEFAULT_MODELS)
    parser.add_argument("--quick", action="store_true", help="the embedded example alone")
    arguments = parser.parse_args()
    paths = [RECIPES / f"{name}.yaml" for name in arguments.recipes] or sorted(RECIPES.glob("*.yaml"))
    rows = [row for path in paths for row in stated(path) if row.model == DIGITS or not arguments.quick]
    wrong = done = absent = 0
    for row in rows:
        if row.model != DIGITS and not (arguments.models / row.model).exists():
            absent += 1
            print(f"{row.recipe:20} {row.network}: left out: the model is not here", flush=True)
            continue
        for text, holds in judged(row, measured(row, arguments.models)):
            done, wrong = done + 1, wrong + (not holds)
            print(f"{row.recipe:20} {row.network}: {text}{'' if holds else '  OUTSIDE'}", flush=True)
    print(f"{wrong} of {done} figures no longer hold; {absent} rows left out")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
