"""Accuracy of INT8 models: FP32, the rivals with their best calibrator, our defaults, and our sweep's best.

    python benchmarks/accuracy.py [--quick] [--only NAME ...] [--models ../shared/models] [--venv DIR] [--out DIR]
                                  [--no-sweep] [--no-rivals | --rivals NAME ...] [--samples N]

Every tool calibrates on the same inputs; other samples judge (none of them calibrates or chooses anything: checked by
their content, and a data set's second copy of a picture that calibrates is left out), on onnxruntime with Q/DQ computed as written. For each
candidate: the task's metric with a 95 % interval of its difference to FP32 (bootstrap over the same samples), SQNR of
the outputs (of boxes and scores in one output each by itself, of what a TopK chose what it chose from), and how many compute nodes are INT8. A rival shows the calibrator with its best SQNR on the evaluation
samples, which favours it. Our sweep chooses by SQNR on samples of neither calibration nor evaluation (on those of the
calibration where there are no more), and keeps the default's INT8 nodes. "Coverage of" a rival is our default with the nodes float that the rival leaves float,
and no others: each model of its own placement, so the two are compared at equal coverage. Our default is no worse than
a rival when the 95 % interval of the difference between the two, sample by sample, reaches zero. Every rival runs in an
environment of its own, made below --venv. The last line is one JSON object; its "models" gives SQNR in dB of the default,
of the best of our own calibrators (an oracle, which sees the evaluation), and of the best rival; `gap_db` is what the default lacks to the oracle, with its 95 % interval over
the same samples: the luckiest of several on few samples is ahead by chance. `typical_gap_db` is the same for the mean over samples of
each one's own SQNR: behind a softmax that is sure of nearly all samples, the few others hold all noise of the data set, and `gap_db` compares
these alone. `symmetric_db` is the default without zero points, and `bound_db` what INT8 could do if every tensor used all 256 numbers.
Its "candidates" say what every way of every rival reached.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from glob import escape
from pathlib import Path
from unittest.mock import patch

import numpy as np
from accuracy_data import HARD, MODELS, SMALL, Array, Subject, stranger, subject
from checkout import ROOT
from environment import RIVALS, rival

from qdqtool.accuracy.parts import group_outputs, with_parts
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import Recipe
from qdqtool.errors import QdqError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.pipeline import recipes
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.ranges import zero_points
from qdqtool.pipeline.ranges.bias import correct_biases
from qdqtool.pipeline.ranges.calibrators import competing
from qdqtool.pipeline.request import RunRequest
from qdqtool.pipeline.sweep import SweepRequest, sweep
from qdqtool.runtime.runner import open_model
from qdqtool.trt.ops import PRODUCTS

WAYS = {
    "onnxruntime": ("minmax", "entropy", "percentile"),
    "modelopt": ("max", "entropy"),
    "aimet": ("min_max", "tf_enhanced", "tf_enhanced+cle", "min_max+seqmse", "tf_enhanced+adaround"),
    "quark": (
        *("minmax", "percentile", "minmse", "entropy", "layerwise"),
        *("percentile+bias", "percentile+cle", "percentile+adaround"),
    ),
    "nncf": ("mean_minmax", "minmax", "mean_minmax+bias", "mean_minmax+transformer"),
}
"""By rival, its calibrators, and what it can do beside one; the best of them is what it shows."""
QUICK_RIVALS = ("onnxruntime", "modelopt")
SPACE = {
    "calibrate.method": ["auto", "max", "mse", "percentile", "entropy"],
    "calibrate.bias": ["keep", "correct"],
}
HARDER = {
    "calibrate.method": ["auto", "max", "mse"],
    "calibrate.weights": ["max", "mse"],
    "calibrate.bias": ["keep", "correct"],
}
"""What the sweep searches; another space, and the ranges of two nodes, where it must beat the defaults."""
EVERY_WAY = {
    "weights.rounding": ("nearest", "gptq", "adaround", "seqmse"),
    "weights.equalize": ("cross-layer", "smooth"),
}
"""What else `auto` could have done, with the calibrator that it chooses then."""
BOUND = "bound"
WIDTHS = (0.85, 1.0, 1.15, 1.3, 1.6)
"""Factors on all ranges of which the bound of 8 bits takes the best."""
METHOD_PREFIX = "method "
"""Before the name of each of our own calibrators; the best of them is the oracle, which sees the evaluation."""
OURS_ALONE = ("narrow", "gemv")
"""Rules that keep nodes float for the sake of speed; rivals have none like them."""
DRAWS = 2000
_QUICKLY_JUDGED, _QUICKLY_JUDGED_OF_LARGE = 1200, 200
"""Samples that judge with --quick: on 48 a gap has an interval of two decibels, and says nothing."""
SILENT = 1e-15
"""Share of noise below which a sample has none: rounding of FP32 leaves more."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one candidate showed.

    Attributes:
        value: mean of the metric.
        low, high: 95 % interval of the difference to FP32.
        sqnr_db: signal to noise of the outputs; None for FP32 itself.
        int8, total: compute nodes whose inputs are all quantized, and all of them.
        note: calibrator or settings.
        error: why there is nothing.
        seconds: what making the model took.
        tried: SQNR of all ways of a rival, or why there is none.
        right: the metric of each sample; not in the JSON.
        noise: (samples, outputs), energy of the differences; not in the JSON.
        signal: the same of the float outputs.
    """

    value: float = float("nan")
    low: float = 0.0
    high: float = 0.0
    sqnr_db: float | None = None
    int8: int = 0
    total: int = 0
    note: str = ""
    error: str = ""
    seconds: float = 0.0
    tried: dict[str, float | str | None] = field(default_factory=dict, compare=False)
    right: Array | None = field(default=None, repr=False, compare=False)
    noise: Array | None = field(default=None, repr=False, compare=False)
    signal: Array | None = field(default=None, repr=False, compare=False)


class Judge:
    """The float model's outputs, and what others make of the same samples."""

    def __init__(self, case: Subject) -> None:
        self._case = case
        self._model = load(case.model)
        first, _, self._parts = with_parts(self._model, self._model)
        self._plain = self._outputs(first)
        self._right = self._rightness(self._plain)
        self.reference = Result(
            value=float(self._right.mean()),
            total=len(_compute(self._model.view)),
            note="float",
            right=self._right,
        )

    def result(self, path: Path, note: str, seconds: float) -> Result:
        """What the model in `path` does; several outputs weigh the same, and their parts where they have some."""
        model = load(path)
        _, second, parts = with_parts(self._model, model)
        if parts != self._parts:
            raise QdqError(
                "lacks the tensors by whose noise the others are measured",
                fix="measure that tool on networks without such outputs",
                where=str(path),
            )
        outputs = self._outputs(second)
        right = self._rightness(outputs)
        noise, signal = self._energies(outputs)
        low, high = _interval(right - self._right)
        view = model.view
        nodes = _compute(view)
        return Result(
            value=float(right.mean()),
            low=low,
            high=high,
            sqnr_db=_decibels(noise, signal),
            int8=sum(_is_int8(node, view) for node in nodes),
            total=len(nodes),
            note=note,
            seconds=round(seconds, 1),
            right=right,
            noise=noise,
            signal=signal,
        )

    def _energies(self, outputs: list[list[Array]]) -> tuple[Array, Array]:
        """Energy of the differences, and of the float outputs; a row per sample, a column per quantity."""
        names = [info.name for info in self._model.view.outputs]
        names += [name for part in self._parts for name in part.names]
        groups = [[names.index(name) for name in group] for group in group_outputs(names, self._parts)]
        noise, signal = (
            np.array([[sum(row[place] for place in group) for group in groups] for row in energies])
            for energies in (
                [
                    [float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(*both, strict=True)]
                    for both in zip(self._plain, outputs, strict=True)
                ],
                [[float(np.square(a.astype(np.float64)).sum()) for a in row] for row in self._plain],
            )
        )
        return noise, signal

    def _outputs(self, model: Model) -> list[list[Array]]:
        runner = open_model(model, description=model.path.name, crowded=True)
        with ThreadPoolExecutor(runner.at_once) as pool:
            made = pool.map(runner.run, self._case.evaluation)
            return [[values[name] for name in runner.outputs] for values in made]

    def _rightness(self, outputs: list[list[Array]]) -> Array:
        pairs = zip(self._plain, outputs, strict=True)
        return np.array(
            [self._case.right(a[0], b[0], number) for number, (a, b) in enumerate(pairs)], np.float64
        )


def main() -> int:
    """Print one table per model, then the verdicts."""
    options = _options()
    pythons = {name: rival(options.venv, name) for name in options.rivals}
    results: dict[str, dict[str, Result]] = {}
    for case in _subjects(options):
        name = case.name
        results[name] = _measured(case, pythons, options)
        print(_table(case, results[name]), flush=True)
    verdicts = {name: _verdict(name, found) for name, found in results.items()}
    print(
        json.dumps(
            {
                "verdicts": verdicts,
                "models": {name: _figures(found) for name, found in results.items()},
                "candidates": {
                    name: {
                        k: asdict(replace(r, right=None, noise=None, signal=None)) for k, r in found.items()
                    }
                    for name, found in results.items()
                },
            },
            sort_keys=True,
        )
    )
    return 0


def _subjects(options: argparse.Namespace) -> Iterator[Subject]:
    quick = ("mobilenet_v1_025_imagenet", "kws_dscnn")
    for name in options.only or (() if options.files else quick if options.quick else MODELS):
        yield subject(name, options.models, *_counts(name, options))
    for words in options.files:
        model, _, data = words.partition("=")
        yield stranger(Path(model), Path(data), *_counts("", options))


def _counts(name: str, options: argparse.Namespace) -> tuple[int, int]:
    """Samples to calibrate on and to evaluate; where they are small, as many as there are."""
    if options.quick:
        return 16, _QUICKLY_JUDGED if name in SMALL else _QUICKLY_JUDGED_OF_LARGE
    return (256, 2000) if name in SMALL else (options.calibration, options.samples)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the accuracy of INT8 models of several tools.")
    parser.add_argument("--quick", action="store_true", help="two models, few samples to calibrate on")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these models only")
    parser.add_argument(
        "--files",
        nargs="+",
        metavar="MODEL=DATA",
        default=(),
        help="other models, each with its inputs, and perhaps its labels, as .npz (benchmarks/trained.py makes some)",
    )
    parser.add_argument("--models", type=Path, default=ROOT.parent / "shared" / "models")
    parser.add_argument(
        "--venv", type=Path, default=ROOT / "runs" / "rivals", help="folder of the rivals' environments"
    )
    parser.add_argument(
        "--out",
        type=lambda path: Path(path).resolve(),
        default=ROOT / "runs" / "accuracy",
        help="folder of the models",
    )
    parser.add_argument("--samples", type=int, default=400, help="largest number of pictures to evaluate")
    parser.add_argument("--no-sweep", action="store_true")
    parser.add_argument("--every-way", action="store_true", help="roundings and equalizations too")
    parser.add_argument("--no-rivals", action="store_const", const=(), dest="rivals")
    parser.add_argument(
        "--rivals", nargs="+", choices=WAYS, metavar="NAME", help=f"these only: {', '.join(WAYS)}"
    )
    parser.add_argument("--ways", nargs="+", metavar="WAY", default=(), help="these ways of the rivals only")
    parser.add_argument(
        "--calibration", type=int, default=64, help="largest number of pictures to calibrate on"
    )
    parser.add_argument("--rival-s", type=int, default=1800, help="seconds that one way of a rival may take")
    options = parser.parse_args()
    if options.rivals is None:
        options.rivals = QUICK_RIVALS if options.quick else tuple(WAYS)
    return options


def _measured(
    case: Subject, pythons: Mapping[str, Path | None], options: argparse.Namespace
) -> dict[str, Result]:
    work = options.out / case.name
    work.mkdir(parents=True, exist_ok=True)
    data = work / "calibration.npz"
    np.savez(data, **case.calibration)
    judge = Judge(case)
    recipe = recipes.load(case.recipe, case.changes)
    results = {"FP32": judge.reference}
    results["default"] = _tried(lambda: _ours(judge, case, recipe, data, work / "default.onnx"))
    results["symmetric"], results[BOUND] = _symmetric_and_bound(judge, case, recipe, data, work)
    if not options.no_sweep:
        results["sweep"] = _tried(lambda: _swept(judge, case, data, work))
    for method in competing():
        single = recipe.model_copy(
            update={"calibrate": recipe.calibrate.model_copy(update={"method": method})}
        )
        results[f"{METHOD_PREFIX}{method}"] = _tried(
            lambda single=single, method=method: _ours(judge, case, single, data, work / f"{method}.onnx")
        )
    for section, values in EVERY_WAY.items() if options.every_way else ():
        for value in values:
            other = recipes.load(case.recipe, (*case.changes, f"{section}={value}"))
            results[f"{METHOD_PREFIX}{value}"] = _tried(
                lambda other=other, value=value: _ours(judge, case, other, data, work / f"{value}.onnx")
            )
    for name, python in pythons.items():
        if python is None:
            results[name] = Result(error="cannot be installed here")
            continue
        path, results[name] = _rival(judge, case, recipe, (str(python), name, data, work), options)
        if path and not results[name].error:
            alike = _like(recipe, _left_float(case.model, path))
            target = work / f"like-{name}.onnx"
            results[f"default, coverage of {name}"] = _tried(
                lambda alike=alike, target=target: _ours(judge, case, alike, data, target)
            )
    return results


def _like(recipe: Recipe, left: Sequence[str]) -> Recipe:
    """The recipe with these nodes float, and no others."""
    changes = {
        "exclude": (*recipe.place.exclude, *map(escape, left)),
        "last_layer": "int8",
        "first_layer": "int8",
        "skip_rules": OURS_ALONE,
    }
    return recipe.model_copy(update={"place": recipe.place.model_copy(update=changes)})


def _tried(make: Callable[[], Result]) -> Result:
    try:
        return make()
    except QdqError as error:
        return Result(error=str(error)[:300])


def _ours(judge: Judge, case: Subject, recipe: Recipe, data: Path, target: Path) -> Result:
    """Our model by this recipe; the inputs are ready, so nothing is preprocessed."""
    started = time.perf_counter()
    order = CalibrationRequest(model=case.model, recipe=recipe, samples=str(data))
    job = Calibration(order)
    method = recipe.calibrate.method
    # as `qdqtool run` does
    table = job.tables(job.collect(job.collect_options([method]), None), [method])[method]
    save(insert(job.model, job.placement, table, recipe.insert), target)
    note = f"{recipe.name}: {method}, weights {recipe.calibrate.weights}, bias {recipe.calibrate.bias}"
    return judge.result(target, note, time.perf_counter() - started)


def _symmetric_and_bound(
    judge: Judge, case: Subject, recipe: Recipe, data: Path, work: Path
) -> tuple[Result, Result]:
    """Our default without zero points, and the bound of 8 bits: zero points on every tensor, whether TensorRT can take them or not.

    Of several widths of all ranges the bound takes the one with the best SQNR on the evaluation samples.
    """
    options = recipe.calibrate.model_copy(update={"symmetric": "always"})
    plain = recipe.model_copy(update={"calibrate": options})
    job = Calibration(CalibrationRequest(model=case.model, recipe=plain, samples=str(data)))
    method = options.method
    table = job.tables(job.collect(job.collect_options([method]), None), [method])[method]

    def made(table: CalibrationTable, name: str, note: str) -> Result:
        save(insert(job.model, job.placement, table, plain.insert), work / name)
        return judge.result(work / name, note, 0.0)

    def bound() -> Result:
        tried = []
        for factor in WIDTHS:
            moved = _zero_points_everywhere(job.placement, table, factor)
            if options.bias == "correct":
                moved = correct_biases(job.model, job.placement, moved, job.samples)
            tried.append(made(moved, "bound.onnx", f"all 256 numbers, ranges x {factor:g}"))
        return max(tried, key=lambda one: one.sqnr_db or 0.0)

    return _tried(lambda: made(table, "symmetric.onnx", "default without zero points")), _tried(bound)


def _zero_points_everywhere(placement: Placement, table: CalibrationTable, factor: float) -> CalibrationTable:
    """Add a zero point to every INT8 activation whose step it shrinks, whether it can be written or not; larger ends times `factor`.

    A zero point does not clip the smaller end. If that end is larger than the range, which clips both ends, the step would grow.
    """
    with patch.object(zero_points, "_LOPSIDED", 1.0):
        return zero_points._move_ranges(table, zero_points._choose_groups(placement, table), factor)  # noqa: SLF001


def _swept(judge: Judge, case: Subject, data: Path, work: Path) -> Result:
    """The best model of a sweep with the default's INT8 nodes, judged by SQNR on samples of their own."""
    started = time.perf_counter()
    chosen_on = work / "selection.npz"
    np.savez(chosen_on, **case.selection)
    changes = (
        *case.changes,
        f"sweep.space={json.dumps(HARDER if case.name in HARD else SPACE)}",
        "sweep.keep_float=[0]",
        f"sweep.tune={2 if case.name in HARD else 0}",
        "sweep.speed=none",
        "compare.task=none",
    )
    order = RunRequest(
        model=case.model,
        recipe=recipes.load(case.recipe, changes),
        samples=str(data),
        eval_samples=str(chosen_on),
        labels=None,
        out=work / "sweep",
    )
    found = sweep(SweepRequest(base=order, recipe=case.recipe, settings=changes))
    best = max(found.pareto, key=lambda trial: trial.outcome.accuracy if trial.outcome else 0.0)
    note = ", ".join(best.outcome.settings) if best.outcome else ""
    model = work / "sweep" / "pareto" / f"{best.number:04}" / "model.qdq.onnx"
    return judge.result(model, note.replace("calibrate.", ""), time.perf_counter() - started)


def _rival(
    judge: Judge,
    case: Subject,
    recipe: Recipe,
    call: tuple[str, str, Path, Path],
    options: argparse.Namespace,
) -> tuple[Path | None, Result]:
    """The rival's best way by SQNR, and its model; a way that takes too long counts as failed."""
    python, name, data, work = call
    found: dict[str, tuple[Path, Result]] = {}
    tried: dict[str, float | str | None] = {}
    for way in options.ways or WAYS[name]:
        if way not in WAYS[name]:
            continue
        target = work / f"{name}-{way}.onnx"
        result = _one_way(judge, case, recipe, (python, name, way, data, target), options.rival_s)
        tried[way] = result.error or result.sqnr_db
        print(f"{case.name} {name} {way}: {tried[way]} ({result.seconds:g} s)", file=sys.stderr, flush=True)
        if not result.error:
            found[way] = (target, result)
    if not found:
        return None, Result(error=str(next(iter(tried.values()), "no way of it was asked for")), tried=tried)
    path, result = max(found.values(), key=lambda one: one[1].sqnr_db or -np.inf)
    return path, replace(result, tried=tried)


def _one_way(
    judge: Judge, case: Subject, recipe: Recipe, call: tuple[str, str, str, Path, Path], most_s: int
) -> Result:
    python, name, way, data, target = call
    script = str(ROOT / "benchmarks" / "rival_ranges.py")
    target.unlink(missing_ok=True)
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [python, script, name, way, str(case.model), str(data), str(target), ",".join(recipe.place.ops)],
            check=False,
            capture_output=True,
            text=True,
            cwd=target.parent,
            timeout=most_s,
        )
    except subprocess.TimeoutExpired:
        return Result(error=f"not finished after {most_s} s", seconds=most_s)
    seconds = round(time.perf_counter() - started, 1)
    if done.returncode or not target.exists():
        said = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        return Result(error=f"{way}: {said}", seconds=seconds)
    return _tried(lambda: judge.result(target, way, seconds))


def _left_float(model: Path, path: Path) -> tuple[str, ...]:
    """Names of our compute nodes that the rival left float; nodes are matched by name, else by place in order."""
    ours, view = _compute(load(model).view), load(path).view
    theirs = _compute(view)
    by_name = {node.name: node for node in theirs}
    if len(ours) == len(theirs):
        pairs = [(mine, by_name.get(mine.name, other)) for mine, other in zip(ours, theirs, strict=True)]
    else:
        pairs = [(mine, by_name[mine.name]) for mine in ours if mine.name in by_name]
    return tuple(mine.name for mine, other in pairs if not _is_int8(other, view))


def _compute(view: GraphView) -> list[Node]:
    return [node for node in view.nodes if node.op in PRODUCTS]


def _is_int8(node: Node, view: GraphView) -> bool:
    """Whether both factors come from DequantizeLinear, perhaps turned or reshaped on the way."""
    return all(_maker(tensor, view) == "DequantizeLinear" for tensor in node.inputs[:2])


def _maker(tensor: str, view: GraphView) -> str:
    maker = view.producer(tensor)
    while maker is not None and maker.op in {"Transpose", "Reshape", "Squeeze", "Unsqueeze"}:
        maker = view.producer(maker.inputs[0])
    return "" if maker is None else maker.op


def _interval(differences: Array) -> tuple[float, float]:
    """The 95 % bootstrap interval of the mean."""
    draws = np.random.default_rng(0).integers(0, len(differences), (DRAWS, len(differences)))
    low, high = np.quantile(differences[draws].mean(axis=1), (0.025, 0.975))
    return float(low), float(high)


def _decibels(noise: Array, signal: Array) -> float:
    """Signal to noise of all samples, (samples, outputs); outputs weigh the same, one that is always zero does not count."""
    whole = signal.sum(axis=0)
    heard = whole > 0
    share = float((noise.sum(axis=0)[heard] / whole[heard]).mean()) if heard.any() else 0.0
    return -10 * float(np.log10(share)) if share else float("inf")


def _gap(best: Result, default: Result) -> tuple[float, float, float]:
    """By how many dB one is quieter than the other on all samples, and its 95 % interval (bootstrap over the same samples)."""
    assert best.noise is not None
    assert default.noise is not None
    assert best.signal is not None
    count = len(best.signal)
    draws = np.random.default_rng(0).integers(0, count, (DRAWS, count))
    gaps = [
        _decibels(best.noise[rows], best.signal[rows]) - _decibels(default.noise[rows], best.signal[rows])
        for rows in (np.arange(count), *draws)
    ]
    low, high = np.nanquantile(gaps[1:], (0.025, 0.975))
    return round(gaps[0], 2), round(float(low), 2), round(float(high), 2)


def _levels(found: Result) -> Array:
    """SQNR of each sample in dB, (samples,); outputs weigh the same, silence and exactness count as 150 dB."""
    assert found.noise is not None
    assert found.signal is not None
    shares = np.divide(found.noise, found.signal, out=np.zeros_like(found.noise), where=found.signal > 0)
    levels: Array = -10 * np.log10(np.maximum(shares.mean(axis=1), SILENT))
    return levels


def _typical_gap(known: Mapping[str, Result], names: Sequence[str]) -> list[float]:
    """By how many dB a sample is quieter under the best of these than under the default, and the 95 % interval of that."""
    levels = {name: _levels(known[name]) for name in names if name in known}
    differences = max(levels.values(), key=lambda level: float(level.mean())) - levels["default"]
    low, high = _interval(differences)
    return [round(float(differences.mean()), 2), round(low, 2), round(high, 2)]


def _table(case: Subject, results: dict[str, Result]) -> str:
    lines = [
        f"### {case.name} ({len(case.evaluation)} evaluation samples)\n",
        f"| candidate | {case.metric} {case.unit} | to FP32 (95 %) | SQNR dB | INT8 nodes | settings | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        if found.error:
            lines.append(f"| {name} | failed: {found.error} ||||||")
            continue
        change = found.value - results["FP32"].value
        gap = "" if found.sqnr_db is None else f"{change:+.2f} ({found.low:+.2f} to {found.high:+.2f})"
        noise = "" if found.sqnr_db is None else f"{found.sqnr_db:.2f}"
        lines.append(
            f"| {name} | {found.value:.2f} | {gap} | {noise} | {found.int8} of {found.total} | {found.note} "
            f"| {found.seconds:g} |"
        )
    return "\n".join(lines) + "\n"


def _verdict(name: str, results: dict[str, Result]) -> dict[str, object]:
    """How our default stands to the rivals, and our sweep to our default."""
    default, swept = results["default"], results.get("sweep")
    gaps = [
        (results[alike].sqnr_db or 0) - (results[rival].sqnr_db or 0)
        for rival in RIVALS
        for alike in (f"default, coverage of {rival}",)
        if alike in results and not results[alike].error and not results[rival].error
    ]
    gains = {rival: _gain(results[rival], default) for rival in RIVALS if rival in results}
    shown = {rival: gain for rival, gain in gains.items() if gain}
    return {
        "default_minus_rival": shown,
        "metric_no_worse": all(high >= 0 for _, high in shown.values()) if shown else None,
        "sqnr_gap_db_at_equal_coverage": round(min(gaps), 2) if gaps else None,
        "sweep_gain_db": None
        if swept is None or swept.error
        else round((swept.sqnr_db or 0) - (default.sqnr_db or 0), 2),
        "hard": name in HARD,
    }


def _figures(results: dict[str, Result]) -> dict[str, float | list[float] | None]:
    """SQNR of the default, of the best of our own calibrators, and of the best rival; null where none was run.

    `gap_db` is what the default lacks to that best one, which is the luckiest of several on these samples; `gap_interval_db`
    says how much of it is chance.
    """
    own = ["default", *(name for name in results if name.startswith(METHOD_PREFIX))]
    known = {name: found for name, found in results.items() if found.sqnr_db is not None and not found.error}

    def best(names: Sequence[str]) -> str | None:
        return max(
            (name for name in names if name in known), key=lambda name: known[name].sqnr_db or 0, default=None
        )

    def shown(name: str | None) -> float | None:
        return None if name is None else round(known[name].sqnr_db or 0, 2)

    oracle = best(own)
    gap = _gap(known[oracle], known["default"]) if oracle and "default" in known else None
    typical = _typical_gap(known, own) if gap else None
    return {
        "default_db": shown("default" if "default" in known else None),
        "oracle_db": shown(oracle),
        "gap_db": gap and gap[0],
        "gap_interval_db": gap and list(gap[1:]),
        "typical_gap_db": typical and typical[0],
        "typical_gap_interval_db": typical and typical[1:],
        "symmetric_db": shown("symmetric" if "symmetric" in known else None),
        "bound_db": shown(BOUND if BOUND in known else None),
        "best_rival_db": shown(best(list(RIVALS))),
    }


def _gain(rival: Result, ours: Result) -> tuple[float, float] | None:
    """95 % interval of our metric minus the rival's, over the same samples."""
    return None if rival.right is None or ours.right is None else _interval(ours.right - rival.right)


if __name__ == "__main__":
    sys.exit(main())
