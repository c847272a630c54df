"""Measures the accuracies that the headers of recipes state, and says which of them are no longer true.

    python benchmarks/run_figures.py                        # all recipes; part of `make figures`
    python benchmarks/run_figures.py conv-int8 llm-nvfp4    # these alone

A header states rows such as

    # Measured with calibrate.method=percentile (TensorRT for RTX 1.7.1, SM86; ...)
    #   ResNet-20, CIFAR-10, 2000 images     top-1: FP32 81.3, INT8 81.8 (-0.1 to +0.9)

The heading names the settings and the GPU, a line `with Conv: place.ops=[...]` further settings of the rows below it, a row
the network (`NETWORKS`: what models.yaml runs, or the embedded example). A figure is true while FP32 is what it says, to a tenth
of a point, and the change that is measured lies in the interval, give or take one sample (processors round differently).
Networks that are not part of the project are left out, and named, where their folder is absent. Recipes for training have
`figures.py`.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
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
}
"""Folders of models.yaml by the name in the header, and the embedded example."""
APART = {
    "the network of qat-digits": "`qdqtool qat run` makes it, in the environment of torch",
    "with per_channel false": "as the row above it",
    "with method and weights mse": "a comparison with a row above it that no recipe sets",
}
"""Rows that are not measured here, by their first words, and why."""

_HEADING = re.compile(r"^# Measured(?: with (?P<settings>[\w.=]+))? \(.*?SM(?P<sm>\d+)")
_VARIANT = re.compile(r"^#\s+with [^:]+: (?P<setting>[\w.]+=\S+)$")
_ROW = re.compile(
    r"^#\s+(?P<network>\S.*?)\s+(?:top-1:?\s+)?FP32 (?P<reference>[\d.]+), (?P<label>[A-Za-z0-9 ]+?) (?P<value>[\d.]+) "
    r"\((?P<low>[-+][\d.]+) to (?P<high>[-+][\d.]+)\)"
)


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
        apart: why it is not measured here; "" where it is.
    """

    recipe: str
    network: str
    settings: tuple[str, ...]
    sm: str
    reference: float
    value: float
    low: float
    high: float
    apart: str

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
    for line in recipe.read_text("utf-8").splitlines():
        if heading := _HEADING.match(line):
            settings = (heading["settings"],) if heading["settings"] else ()
            sm = heading["sm"]
        elif variant := _VARIANT.match(line):
            settings = (*settings, variant["setting"])
        elif row := _ROW.match(line):
            text = line.lstrip("# ")
            apart = next((reason for words, reason in APART.items() if text.startswith(words)), "")
            figures = (float(row[name]) for name in ("reference", "value", "low", "high"))
            found.append(Stated(recipe.stem, row["network"], settings, sm, *figures, apart))
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
    """The headline of the report: `reference` and `int8` in percent, `interval` of the change in points, `samples`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        subprocess.run(
            words(row, out, models), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        accuracy: dict[str, Any] = json.loads((out / row.model / "report.json").read_text("utf-8"))["data"][
            "summary"
        ]["accuracy"]
    return accuracy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", help="names; default: all that state something")
    parser.add_argument("--models", type=Path, default=DEFAULT_MODELS)
    arguments = parser.parse_args()
    paths = [RECIPES / f"{name}.yaml" for name in arguments.recipes] or sorted(RECIPES.glob("*.yaml"))
    rows = [row for path in paths for row in stated(path)]
    wrong = done = 0
    for row in rows:
        absent = not row.apart and row.model != DIGITS and not (arguments.models / row.model).exists()
        if row.apart or absent:
            print(
                f"{row.recipe:20} {row.network}: left out: {row.apart or 'the model is not here'}", flush=True
            )
            continue
        found = measured(row, arguments.models)
        reference, value, (low, high) = found["reference"], found["int8"], found["interval"]
        sample = 100 / found["samples"]
        is_true = (
            abs(reference - row.reference) <= 0.1
            and row.low - sample <= value - reference <= row.high + sample
        )
        done, wrong = done + 1, wrong + (not is_true)
        print(
            f"{row.recipe:20} {row.network}: FP32 {reference:.2f}, {value:.2f} ({low:+.1f} to {high:+.1f}); stated "
            f"{row.reference}, {row.value} ({row.low:+} to {row.high:+}){'' if is_true else '  OUTSIDE'}",
            flush=True,
        )
    print(f"{wrong} of {done} figures are outside the interval that they state; {len(rows) - done} left out")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
