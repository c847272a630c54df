"""Measures the tables of docs/guides/formats.md whose columns are settings, and says which figures are no longer true.

    python benchmarks/guide_figures.py              # part of `make figures`: some five minutes on one core
    python benchmarks/guide_figures.py --only digits

A table is one of them where its head names settings:

    | network | recipe | `weights.rounding=nearest` | `weights.rounding=gptq` |
    |---|---|---|---|
    | ViT, two blocks | `llm-int4-weights` | 18.0 | 21.9 |

Each figure is the signal to noise of the outputs in dB, on the evaluation samples of the network (`NETWORKS` of run_figures.py)
and on onnxruntime; no engine is built. It is true while it is measured within SLACK. Networks that are not part of the project
are left out, and named, where their folder is absent.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from models import DEFAULT_MODELS, HERE, sample_words
from ruamel.yaml import YAML
from run_figures import DIGITS, NETWORKS, RECIPES
from run_figures import stated as rows_of

PAGE = HERE.parent / "docs" / "guides" / "formats.md"
SLACK = 0.3
"""dB; processors round differently, and where a choice is close they choose differently."""
_SETTING = re.compile(r"`([\w.]+=[\w-]+)`")


@dataclass(frozen=True)
class Stated:
    """One figure of a table.

    Attributes:
        network: the row's first words, as NETWORKS knows them.
        recipe: name of the recipe.
        setting: what the column's head says.
        value: dB.
    """

    network: str
    recipe: str
    setting: str
    value: float

    @property
    def model(self) -> str:
        """The folder of models.yaml, or the embedded example.

        Raises:
            KeyError: nobody said what the row is about.
        """
        for name, folder in NETWORKS.items():
            if self.network.startswith(name):
                return folder
        raise KeyError(self.network)


def stated(page: Path = PAGE) -> Iterator[Stated]:
    """The figures of all tables with settings in their head, row by row."""
    settings: list[str] = []
    for line in page.read_text("utf-8").splitlines():
        if not line.startswith("|"):
            settings = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if found := _SETTING.findall(line):
            settings = found
        elif settings and not set(line) <= set("|-"):
            network, recipe, *values = cells
            for setting, value in zip(settings, values, strict=True):
                if value:
                    yield Stated(network, recipe.strip("`"), setting, float(value))


def measured(figure: Stated, models: Path) -> float:
    """The SQNR of the first output in dB."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        model, calibration, evaluation, changes = _material(figure.model, out, models)
        made = str(out / "made.onnx")
        tool = [sys.executable, "-m", "qdqtool"]
        quantize = [*tool, "quantize", model, "--recipe", figure.recipe, "--samples", calibration, "-o", made]
        compare = [*tool, "compare", model, made, "--samples", evaluation, "--json"]
        sm = rows_of(RECIPES / f"{figure.recipe}.yaml")[
            0
        ].sm  # the recipe's header names it, the format may need it
        for call in (
            [
                *quantize,
                *changes,
                "--set",
                f"build.sm={sm}",
                "--set",
                figure.setting,
                "--set",
                "calibrate.symmetric=always",
            ],
            [*compare, *changes],
        ):
            done = subprocess.run(call, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        measures = json.loads(done.stdout)["data"]["outputs"][0]["measures"]
        return float(next(each["value"] for each in measures if each["metric"] == "sqnr_db"))


def _material(name: str, out: Path, models: Path) -> tuple[str, str, str, list[str]]:
    """Model, calibration samples, evaluation samples and preprocessing of a network, as the command line takes them."""
    if name == DIGITS:
        place = RECIPES / "examples" / "digits"
        return (*(str(place / file) for file in ("digits.onnx", "calibration.npz", "evaluation.npz")), [])
    entry = YAML(typ="safe").load((HERE / "models.yaml").read_text("utf-8"))[name]
    words = sample_words(name, entry, argparse.Namespace(models=models, out=out))
    given = dict(zip(words[::2], words[1::2], strict=True))
    changes = ["--set", f"samples.preprocess={json.dumps(entry['preprocess'])}"]
    return str(models / name / "model.onnx"), given["--samples"], given["--eval-samples"], changes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a network of models.yaml, or digits")
    parser.add_argument("--models", type=Path, default=DEFAULT_MODELS)
    parser.add_argument("--quick", action="store_true", help="the embedded example alone")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.only = DIGITS
    figures = [figure for figure in stated() if arguments.only in ("", figure.model)]
    wrong = absent = 0
    for figure in figures:
        told = f"{figure.network}, {figure.recipe}, {figure.setting}"
        if figure.model != DIGITS and not (arguments.models / figure.model).exists():
            absent += 1
            print(f"{told}: left out: the model is not here", flush=True)
            continue
        value = measured(figure, arguments.models)
        holds = abs(value - figure.value) <= SLACK + 0.05
        wrong += not holds
        print(f"{told}: {value:.1f} dB; stated {figure.value}{'' if holds else '  OUTSIDE'}", flush=True)
    print(f"{wrong} of {len(figures) - absent} figures no longer hold; {absent} left out")
    return 1 if wrong or not figures else 0


if __name__ == "__main__":
    sys.exit(main())
