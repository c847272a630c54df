"""Measures the figures that a recipe's header states, and says which of them are no longer true.

    python benchmarks/figures.py recipes/qat-digits.yaml            # `make figures`
    python benchmarks/figures.py recipes/qat-digits.yaml --first 1  # only the main table

A header states lines such as

    #   QAT    96.50   (94.71 to 97.70)   -0.50 (-1.83 to 0.83)    10 of 10 nodes INT8
    #       --set qat.scales=fixed        95.83   -1.17 (-2.67 to 0.17)

The first kind belongs to the bare recipe. The second is the QAT row, or with "(PTQ alone)" the PTQ row, of the recipe
with these options. A figure is true while what is measured lies in the interval that it states, and as many nodes run INT8 as it says. A recipe that
needs the networks that QDQTOOL_MODELS names (by default those beside the checkout) is left out, and said to be, without them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from models import DEFAULT_MODELS

_NETWORKS = "QDQTOOL_MODELS"
_ROW = re.compile(
    r"^#\s+(?P<name>FP32|PTQ|QAT)\s+(?P<value>[\d.]+)\s+\((?P<low>[\d.]+) to (?P<high>[\d.]+)\)"
    r"(?:.*?(?P<nodes>\d+) of \d+ nodes INT8)?"
)
_VARIANT = re.compile(
    r"^#\s+(?P<options>(?:--set \S+\s+)+)(?P<alone>\(PTQ alone\))?\s*(?P<value>\d[\d.]*)\s+-?[\d.]+ "
    r"\((?P<low>-?[\d.]+) to (?P<high>-?[\d.]+)\)"
)


@dataclass(frozen=True)
class Figure:
    """A stated value of one row, the options that give it, the interval around it, and how many nodes run INT8."""

    row: str
    options: tuple[str, ...]
    value: float
    low: float
    high: float
    nodes: int | None = None


def stated(recipe: Path) -> list[Figure]:
    """The figures in the header of a recipe, in its order."""
    found = []
    reference = 0.0
    for line in recipe.read_text("utf-8").splitlines():
        if match := _ROW.match(line):
            reference = float(match["value"]) if match["name"] == "FP32" else reference
            values = (float(match[key]) for key in ("value", "low", "high"))
            nodes = int(match["nodes"]) if match["nodes"] else None
            found.append(Figure(match["name"], (), *values, nodes))
        elif match := _VARIANT.match(line):
            row = "PTQ" if match["alone"] else "QAT"
            low, high = (reference + float(match[key]) for key in ("low", "high"))
            found.append(Figure(row, tuple(shlex.split(match["options"])), float(match["value"]), low, high))
    return found


def measured(recipe: Path, options: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Every row of the table that the recipe gives with these options."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "qdqtool", "qat", "run", str(recipe), *options, "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = json.loads((out / "qat.json").read_text("utf-8"))["data"]["rows"]
    return {row["name"]: row for row in rows}


def _change(row: dict[str, float]) -> str:
    """The change against FP32 with its interval; "" for FP32 itself."""
    if row["change"] is None:
        return ""
    return f"{row['change']:+.2f} ({row['change_low']:.2f} to {row['change_high']:.2f})"


def summary(wrong: int, seen: int, stated: int) -> str:
    """The last line: of the figures that were measured, how many have left their intervals, and how many were not measured."""
    left = f"; {stated - seen} of {stated} were not measured" if seen < stated else ""
    return f"{wrong} of {seen} figures are outside the interval that they state{left}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--quick", action="store_const", const=1, dest="first", help="the first run alone")
    parser.add_argument("--first", type=int, default=None, help="runs to do; the first is the bare recipe")
    arguments = parser.parse_args()
    figures = stated(arguments.recipe)
    if _NETWORKS in arguments.recipe.read_text("utf-8"):
        os.environ.setdefault(_NETWORKS, str(DEFAULT_MODELS))
        if not Path(os.environ[_NETWORKS]).exists():
            print(f"{arguments.recipe.stem}: left out: {_NETWORKS} names no folder of networks")
            return 0
    wrong = seen = 0
    for options in list(dict.fromkeys(figure.options for figure in figures))[: arguments.first]:
        values = measured(arguments.recipe, options)
        for figure in (each for each in figures if each.options == options):
            row = values[figure.row]
            value = row["value"]
            is_true = figure.low <= value <= figure.high and figure.nodes in (None, row["nodes_int8"])
            wrong += not is_true
            seen += 1
            said = "" if is_true else "  OUTSIDE"
            print(
                f"{figure.row:4} {value:6.2f} ({row['low']:.2f} to {row['high']:.2f})  {_change(row)}  "
                f"stated {figure.value:6.2f} ({figure.low:.2f} to {figure.high:.2f}){said}  {shlex.join(options)}",
                flush=True,
            )
    print(summary(wrong, seen, len(figures)))
    return 1 if wrong or not figures else 0


if __name__ == "__main__":
    sys.exit(main())
