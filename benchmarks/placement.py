"""Our default placement against modelopt's and onnxruntime's: same models, same ranges, same builder.

    python benchmarks/placement.py [--quick] [--types fp32|fp16] [--only NAME ...] [--shared ../shared] [--venv DIR]

Every network is quantized by the three, all with the largest magnitudes of the same samples, built with TensorRT for
RTX for SM86, audited, and compared with its float self on other samples. The rivals live in environments of their
own, which are made at the first run (some gigabytes, because modelopt needs torch).

Per tool: INT8 compute nodes, kernels, kernels that only convert, MB of activations as dumped and with epilogues
fused, SQNR of the worst output, top-1 where there are labels. Where a rival leaves other nodes float than we do, a row
"ours as RIVAL" is our placement with the rival's choice of nodes. The table at the end takes from it, network by
network, what we have more than each rival at equal coverage, so less is better but for SQNR and top-1. The last line
is one JSON object; in it the differences to the best rival, without regard to coverage, are per network (bytes: as
dumped and fused, whichever is worse for us).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path

import numpy as np
import onnx
from checkout import ROOT
from environment import rival as rival_python
from families import FAMILIES
from ruamel.yaml import YAML

from qdqtool.accuracy.compare import compare
from qdqtool.auditing.full_audit import audit
from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.calibration.collect import collect
from qdqtool.calibration.samples.opening import Samples, open_samples
from qdqtool.calibration.table import make_table
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.recipe import (
    CalibrationOptions,
    CompareOptions,
    InsertOptions,
    PlacementOptions,
    PrepareOptions,
    Preprocess,
)
from qdqtool.core.tensors import DType
from qdqtool.engine import read
from qdqtool.errors import QdqError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert
from qdqtool.placement.decide import decide
from qdqtool.runtime.runner import open_runner

HERE = ROOT / "benchmarks"
OURS = "ours"
RIVALS = ("modelopt", "onnxruntime")
CHOOSY = ("gemv", "narrow", "squeeze_excite")
"""The rules that leave nodes float although there is an INT8 kernel for them."""
QUICK = ("resnet18", "mobilenet_v2", "vit", "unet")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One tool on one network; `error` where it failed."""

    int8: int = 0
    compute: int = 0
    kernels: int = 0
    convert: int = 0
    dumped: int = 0
    fused: int = 0
    sqnr_db: float | None = None
    top1: float | None = None
    floats: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A float model and its samples: the first ones calibrate, the others judge."""

    model: Path
    calibration: Samples
    evaluation: Samples
    task: str = "none"


def main() -> int:
    options = _options()
    pythons = {name: rival_python(options.venv, name) for name in RIVALS}
    results: dict[str, dict[str, Result]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only or (QUICK if options.quick else (*FAMILIES, *_entries())):
            work = Path(folder) / name
            work.mkdir()
            network = _network(name, work, options)
            results[name] = {OURS: _ours(network, work, options.types)}
            for rival in RIVALS:
                if options.types == "fp32" or rival == "modelopt":
                    theirs = _theirs(rival, pythons[rival], network, work, options.types)
                    results[name][rival] = theirs
                    if not theirs.error and set(theirs.floats) != set(results[name][OURS].floats):
                        same = _ours(network, work, options.types, _as(theirs, results[name][OURS]))
                        results[name][f"{OURS} as {rival}"] = same
            print(_table(name, results[name]), flush=True)
            shutil.rmtree(work)
    print(_equal_table(results), flush=True)
    print(json.dumps(_summary(results), sort_keys=True))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare placements on the same builder.")
    parser.add_argument("--quick", action="store_true", help="four networks, few samples")
    parser.add_argument("--types", choices=("fp32", "fp16"), default="fp32", help="type of the float part")
    parser.add_argument("--only", nargs="*", default=[], help="names of networks")
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared", help="folder with models/")
    parser.add_argument(
        "--venv", type=Path, default=ROOT / "runs" / "rivals", help="folder of the rivals' environments"
    )
    return parser.parse_args()


def _entries() -> dict[str, dict]:
    return YAML(typ="safe").load((HERE / "models.yaml").read_text("utf-8"))


def _network(name: str, folder: Path, options: argparse.Namespace) -> Network:
    """The float model with batch 1 and its samples: real ones where the model is, random ones for drawn networks."""
    path, count = folder / "float.onnx", 4 if options.quick else 16
    if name in FAMILIES:
        _save_static(FAMILIES[name](), path)
        info = load(path).view.inputs
        shape = [int(dim) for dim in info[0].shape or ()]
        random = np.random.default_rng(7)
        values = (
            random.integers(0, 1000, (2 * count, *shape[1:]))
            if info[0].dtype is DType.INT64
            else random.standard_normal((2 * count, *shape[1:])).astype(np.float32)
        )
        np.savez(folder / "samples.npz", x=values)
        text = str(folder / "samples.npz")
        return Network(
            model=path,
            calibration=open_samples(f"{text}[:{count}]", info),
            evaluation=open_samples(f"{text}[{count}:]", info),
        )
    entry, models = _entries()[name], options.shared / "models"
    _save_static(onnx.load(models / name / "model.onnx"), path)
    info = load(path).view.inputs
    shape = Preprocess.model_validate(entry.get("preprocess", {}))
    labels = str(models / entry["labels"]) if "labels" in entry else None
    samples, split = str(models / entry["samples"]), entry.get("split")
    evaluation = f"{samples}[1::{split}]" if split else str(models / entry["evaluation"])
    calibration = f"{samples}[::{split}]" if split else samples
    return Network(
        model=path,
        calibration=open_samples(calibration, info, shape, labels=labels, limit=64),
        evaluation=open_samples(evaluation, info, shape, labels=labels, limit=500),
        task="none" if "coco" in entry else "classify",
    )


def _save_static(proto: onnx.ModelProto, path: Path) -> None:
    """The model with batch 1, as our reader leaves it: current opset, so that every tool can read it."""
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param or dim.dim_value <= 0:
                dim.dim_value = 1
    del proto.graph.value_info[:]
    given = path.with_name("given.onnx")
    onnx.save(proto, given)
    save(load(given), path)


def _as(theirs: Result, ours: Result) -> PlacementOptions:
    """What to ask of our placement to have the same nodes float as a rival."""
    more = not set(ours.floats) <= set(theirs.floats)
    return PlacementOptions(exclude=tuple(map(escape, theirs.floats)), skip_rules=CHOOSY if more else ())


def _ours(network: Network, work: Path, types: str, options: PlacementOptions | None = None) -> Result:
    model = prepare(load(network.model), PrepareOptions())
    placement = decide(model.view, options)
    histograms = collect(model, placement, network.calibration)
    table = make_table(histograms, placement, model.view, CalibrationOptions(method="max"))
    path = work / "ours.onnx"
    save(insert(model, placement, table, InsertOptions(types=types)), path)
    return _measure(path, network, work / "ours")


def _theirs(rival: str, python: Path | None, network: Network, work: Path, types: str) -> Result:
    if python is None:
        return Result(error="cannot be installed here")
    path, data = work / f"{rival}.onnx", work / "calibration.npz"
    if not data.exists():
        feeds = [sample.feeds for sample in network.calibration]
        np.savez(data, **{name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]})
    command = [str(python), str(HERE / "rivals.py"), rival, str(network.model), str(data), str(path), types]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=work)
    if done.returncode or not path.exists():
        return Result(error=(done.stderr.strip().splitlines() or ["no output"])[-1][:200])
    return _measure(path, network, work / rival)


def _measure(path: Path, network: Network, folder: Path) -> Result:
    """Build, audit, and compare with the float model."""
    try:
        built, _ = RTX.build(BuildRequest(model=path, folder=folder))
        engine = read(folder / str(built.layers))
        found = audit(load(path), engine)
        judged = compare(
            open_runner(network.model, description="float"),
            open_runner(path, description="quantized"),
            network.evaluation,
            CompareOptions(task=network.task),
        )
    except QdqError as error:
        return Result(error=str(error)[:200])
    sqnr = [m.value for output in judged.outputs for m in output.measures if m.metric == "sqnr_db"]
    top1 = [task.candidate for task in judged.task if task.metric == "top1"]
    return Result(
        int8=sum(verdict.precision is DType.INT8 for verdict in found.verdicts),
        compute=len(found.verdicts),
        kernels=found.counts.kernels,
        convert=found.counts.qdq,
        dumped=found.counts.activation_bytes_dumped or 0,
        fused=found.counts.activation_bytes_fused or 0,
        sqnr_db=min((value for value in sqnr if value is not None), default=None),
        top1=top1[0] if top1 else None,
        floats=tuple(verdict.node for verdict in found.verdicts if verdict.precision is not DType.INT8),
    )


def _table(name: str, results: dict[str, Result]) -> str:
    lines = [f"{name:34} int8/all  kernels  convert  MB dumped  MB fused   SQNR dB   top-1"]
    for tool, found in results.items():
        if found.error:
            lines.append(f"  {tool:32} failed: {found.error}")
            continue
        counts = f"{found.int8}/{found.compute}"
        sizes = f"{found.dumped / 1e6:10.2f} {found.fused / 1e6:9.2f}"
        sqnr = "-" if found.sqnr_db is None else f"{found.sqnr_db:.2f}"
        top1 = "-" if found.top1 is None else f"{found.top1:.1f}"
        lines.append(
            f"  {tool:32} {counts:>8} {found.kernels:8} {found.convert:8} {sizes} {sqnr:>9} {top1:>7}"
        )
    return "\n".join(lines)


def _equal(results: dict[str, dict[str, Result]]) -> Iterator[tuple[str, str, Result, Result]]:
    """Network, rival, our result with as many nodes in INT8 as the rival has, and the rival's."""
    for name, found in results.items():
        for rival in RIVALS:
            ours, theirs = found.get(f"{OURS} as {rival}", found[OURS]), found.get(rival)
            if theirs is not None and not theirs.error and not ours.error:
                yield name, rival, ours, theirs


def _equal_table(results: dict[str, dict[str, Result]]) -> str:
    lines = [
        f"{'ours less rival, equal coverage':46} int8  theirs  kernels  KB dumped  KB fused   SQNR dB   top-1"
    ]
    for name, rival, ours, theirs in _equal(results):
        sizes = f"{(ours.dumped - theirs.dumped) / 1e3:10.1f} {(ours.fused - theirs.fused) / 1e3:9.1f}"
        gains = (_gain(ours.sqnr_db, theirs.sqnr_db, 2), _gain(ours.top1, theirs.top1, 1))
        sqnr, top1 = ("-" if gain is None else f"{gain:+}" for gain in gains)
        counts = f"{ours.int8:5} {theirs.int8:7} {ours.kernels - theirs.kernels:+8}"
        lines.append(f"  {name:32}{rival:12}{counts} {sizes} {sqnr:>9} {top1:>7}")
    return "\n".join(lines)


def _gain(ours: float | None, theirs: float | None, digits: int) -> float | None:
    return None if ours is None or theirs is None else round(ours - theirs, digits)


def _at_equal_coverage(results: dict[str, dict[str, Result]]) -> dict[str, dict[str, dict]]:
    rows: dict[str, dict[str, dict]] = {}
    for name, rival, ours, theirs in _equal(results):
        rows.setdefault(name, {})[rival] = {
            "int8": [ours.int8, theirs.int8],
            "kernels": ours.kernels - theirs.kernels,
            "bytes": max(ours.dumped - theirs.dumped, ours.fused - theirs.fused),
            "sqnr_db": _gain(ours.sqnr_db, theirs.sqnr_db, 3),
            "top1": _gain(ours.top1, theirs.top1, 2),
        }
    return rows


def _summary(results: dict[str, dict[str, Result]]) -> dict:
    kernels, size, percent = {}, {}, {}
    for name, found in results.items():
        ours, rivals = found[OURS], [r for tool, r in found.items() if tool in RIVALS and not r.error]
        if ours.error or not rivals:
            kernels[name] = size[name] = percent[name] = None
            continue
        kernels[name] = ours.kernels - min(rival.kernels for rival in rivals)
        size[name] = max(
            ours.dumped - min(rival.dumped for rival in rivals),
            ours.fused - min(rival.fused for rival in rivals),
        )
        percent[name] = round(100 * size[name] / max(1, min(rival.fused for rival in rivals)), 3)
    return {
        "at_equal_coverage": _at_equal_coverage(results),
        "bytes_percent_over_best_rival": percent,
        "kernels_over_best_rival": kernels,
        "bytes_over_best_rival": size,
        "networks": {
            name: {tool: asdict(one) for tool, one in found.items()} for name, found in results.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
