"""ONNX's own test models, one or more per operator, and whether each computes the same after every edit of ours."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from qdqtool.core.recipe import InsertOptions, PlacementOptions, PrepareOptions
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.typed.emulate import emulate_types
from qdqtool.graph.view import Model
from qdqtool.placement.decide import decide
from qdqtool.placement.repair import repair
from tests.graph.placing import table_for

Feeds = dict[str, Any]
_NO_KERNEL = "NOT_IMPLEMENTED|is not supported with"
"""What onnxruntime says where its CPU has no FP16 kernel."""
RANDOM = ("bernoulli", "dropout", "random", "multinomial", "training")
"""Parts of the names of models that compute something else each time."""


@dataclass(frozen=True)
class Case:
    name: str
    model: onnx.ModelProto
    feeds: Feeds


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """All models whose inputs are tensors; making them takes about 20 s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    return tuple(_cases(found))


def _cases(found: list[Any]) -> Iterator[Case]:
    for case in sorted(found, key=lambda case: case.name):
        if not case.data_sets or any(word in case.name for word in RANDOM):
            continue
        inputs, _ = case.data_sets[0]
        names = [value.name for value in case.model.graph.input]
        if len(inputs) == len(names) and all(isinstance(value, (np.ndarray, np.generic)) for value in inputs):
            yield Case(case.name, case.model, {n: np.asarray(v) for n, v in zip(names, inputs, strict=True)})


def run(model: bytes, feeds: Feeds) -> list[Any] | str:
    """Return what onnxruntime computes, else what onnx's reference computes, else the error of onnxruntime."""
    outputs = run_by_onnxruntime(model, feeds)
    return (
        outputs
        if isinstance(outputs, list)
        else _by_reference(onnx.load_from_string(model), feeds) or outputs
    )


def run_by_onnxruntime(model: bytes, feeds: Feeds) -> list[Any] | str:
    """Return what onnxruntime computes, or its error."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return list(session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()}))
    except Exception as error:  # noqa: BLE001 -- onnxruntime's exceptions share no class
        return str(error)


def _by_reference(model: onnx.ModelProto, feeds: Feeds) -> list[Any] | None:
    names = {value.name for value in model.graph.input}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return list(ReferenceEvaluator(model).run(None, {n: v for n, v in feeds.items() if n in names}))
        except Exception:  # noqa: BLE001 -- neither do its own
            return None


def prepared(model: Model, feeds: Feeds) -> Model:
    return prepare(model, PrepareOptions())


def inserted(model: Model, feeds: Feeds) -> Model | None:
    ready = prepare(model, PrepareOptions())
    placement = decide(ready.view, PlacementOptions())
    if not placement.quantized or not all(
        np.isfinite(value).all() for value in feeds.values() if value.dtype.kind == "f"
    ):
        return None
    table = table_for(ready, placement, feeds)
    if any(not np.isfinite(amax) or amax <= 0 for entry in table.ranges for amax in entry.amax):
        return None  # masks with infinities, and tensors that are zero: no calibration would accept them
    return insert(ready, placement, table, InsertOptions())


def converted(model: Model, feeds: Feeds) -> Model:
    return convert(model, InsertOptions(types="fp16", overflow="ignore"))[0]


def rounded(model: Model, feeds: Feeds) -> Model | None:
    found = emulate_types(converted(model, feeds))
    return None if found is None else found[0]


def repaired(model: Model, feeds: Feeds) -> Model:
    return repair(model)[0]


EDITS: dict[str, tuple[Callable[[Model, Feeds], Model | None], float]] = {
    "prepare": (prepared, 1e-4),
    "insert": (inserted, 0.1),
    "convert": (converted, 2e-2),
    "round": (rounded, 2e-2),
    "repair": (repaired, 1e-2),
}
"""Each edit, and the largest difference as a share of the largest magnitude: rounding, INT8 or FP16."""


def troubles(case: Case, folder: Path) -> dict[str, str]:
    """Return what went wrong with a model, by edit. Nothing is expected of a model that neither onnxruntime nor onnx runs."""
    path = folder / "model.onnx"
    path.write_bytes(case.model.SerializeToString())
    expected = run(path.read_bytes(), case.feeds)
    try:
        model = load(path)
        model.view.nodes  # noqa: B018 -- every model can be looked at
    except InputFileError as error:
        return {} if isinstance(expected, str) else {"load": str(error)}
    if isinstance(expected, str):
        return {}
    found = {}
    for name, (edit, share) in EDITS.items():
        try:
            made = edit(model, case.feeds)
        except InputFileError as error:
            found[name] = f"refused: {error}"
            continue
        if made is not None:
            wanted = run(path.read_bytes(), _in_fp16(case.feeds)) if edit is rounded else expected
            assert not isinstance(wanted, str), wanted
            half = any(value.dtype == np.float16 for value in case.feeds.values())
            trouble = _difference(wanted, run(serialize(made), case.feeds), max(share, 2e-3 * half))
            if trouble:
                found[name] = trouble
    return found


def _in_fp16(feeds: Feeds) -> Feeds:
    """What a model in FP16 makes of its inputs: of 10001 and 10002, both 10000, no arithmetic makes two numbers again."""
    with np.errstate(over="ignore"):
        return {
            name: value.astype(np.float16).astype(value.dtype) if value.dtype == np.float32 else value
            for name, value in feeds.items()
        }


def _difference(expected: list[Any], computed: list[Any] | str, share: float) -> str | None:
    if isinstance(computed, str):
        return None if re.search(_NO_KERNEL, computed) else f"does not run any more: {computed}"
    for one, other in zip(expected, computed, strict=True):
        if not isinstance(one, np.ndarray) or one.dtype.kind not in "fc":
            continue  # rounding may turn a comparison, and with it integers, text and lists
        if one.shape != other.shape:
            return f"has shape {other.shape} instead of {one.shape}"
        wide, found = (_clipped(value) for value in (one, other))
        both = np.isfinite(wide) & np.isfinite(found)
        limit = share * float(np.abs(wide[both]).max(initial=0)) + 1e-5
        if not np.array_equal(np.isnan(wide), np.isnan(found)) or (np.abs(wide - found)[both] > limit).any():
            return f"differs by {np.abs(wide - found)[both].max(initial=0):.3g}, more than {limit:.3g}"
    return None


def _clipped(value: np.ndarray) -> np.ndarray:
    """Masks beyond FP16 are clipped by the conversion, which says so."""
    if value.dtype.kind == "c":
        return value
    return np.clip(value.astype(np.float64), -65504, 65504)
