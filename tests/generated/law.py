"""The law of every command that writes a model: the same function, and nothing about the model that a caller relies on is lost.

For a network and a command: onnx's checker and type inference accept what was written, onnxruntime opens it, inputs, outputs
and metadata are those of the network, and the outputs are as near to the network's as the command allows. A quantized model
has to give the network's outputs again once its Q/DQ nodes are removed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import qdqtool
from qdqtool.core.recipe import PrepareOptions
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.deferred import whole
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.unquantize import float_graph
from qdqtool.graph.typed.emulate import emulate_types
from tests.generated.disturb import disturbed
from tests.generated.draft import Array, Network, NoKernel, Unfit, run
from tests.generated.networks import network as start_of
from tests.generated.steps import JUMPS

EXACT_DB = 80.0
"""SQNR from which two models compute the same up to rounding in FP32."""


REPAIRED_DB = 20.0
"""SQNR between a model and its repaired form: weights may be rounded once more."""


class Broken(AssertionError):  # noqa: N818 -- no error of the program: a verdict
    """The law does not hold."""


Source = Path | onnx.ModelProto
Run = Callable[[Network, Source, Path], object]


@dataclass(frozen=True)
class Command:
    """A command that turns a network's file into another model.

    Attributes:
        run: writes a file from the network and its model.
        floor: least SQNR in dB of the result; below EXACT_DB asked of networks without JUMPS only.
        lifted: whether the result without Q/DQ is the network again.
        foreign: whether onnxruntime may have no kernel for the result: bodies in BF16, operators of TensorRT.
    """

    run: Run
    floor: float
    lifted: bool = False
    foreign: bool = False


def broken(network: Network, command: str, folder: Path, *, in_memory: bool = False) -> str | None:
    """What is wrong with the model that a command makes of a network, given as a file or in memory; None if nothing is."""
    source, out = folder / "network.onnx", folder / "out.onnx"
    onnx.save(network.proto, source)
    out.unlink(missing_ok=True)
    asked = COMMANDS[command]
    try:
        asked.run(network, network.proto if in_memory else source, out)
    except UsageError as error:
        return None if NOTHING_TO_DO in str(error) else f"refused: {error}"
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is a finding
        return f"{type(error).__name__}: {error}"
    try:
        _signature(network.proto, onnx.load(out))
        _values(network, onnx.load(out), asked.floor, asked)
        if asked.lifted:
            _values(network, whole(float_graph(load(out)).proto), EXACT_DB, asked)
    except Broken as error:
        return str(error)
    return None


def known(network: Network, said: str) -> str | None:
    """The entry of KNOWN that a finding belongs to."""
    return next((entry for entry, belongs in KNOWN.items() if belongs(network, said)), None)


def shortest(network: Network, command: str, folder: Path) -> Network:
    """The shortest start of a network that breaks the law by the same command; the whole network is known to break it."""
    starts = (start_of(network.seed, steps) for steps in range(1, len(network.steps)))
    return next((start for start in starts if broken(start, command, folder)), network)


def commands_of(seed: int, count: int = 1) -> list[str]:
    """The commands that a network is tried with: other ones for other seeds, each as often as the others."""
    return random.Random(f"commands of {seed}").sample(list(COMMANDS), count)


def _signature(before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    try:
        if _accepted(before):
            onnx.checker.check_model(after)
        onnx.shape_inference.infer_shapes(after, check_type=True, strict_mode=True)
    except Exception as error:
        raise Broken(f"onnx refuses it: {error}") from error
    given = {tensor.name for tensor in before.graph.initializer}
    sides = [
        _described(value for value in before.graph.input if value.name not in given),
        _described(before.graph.output),
    ]
    made = [_described(after.graph.input), _described(after.graph.output)]
    for what, old, new in zip(("inputs", "outputs"), sides, made, strict=True):
        if [entry[:2] for entry in old] != [entry[:2] for entry in new]:
            raise Broken(f"{what} were {old} and are {new}")
        for (name, _, dims), (_, _, others) in zip(old, new, strict=True):
            if dims and not all(
                one == other or isinstance(one, str) for one, other in zip(dims, others, strict=True)
            ):
                raise Broken(f"{name} had the dimensions {dims} and has {others}")
    kept = {entry.key: entry.value for entry in after.metadata_props}
    lost = [entry.key for entry in before.metadata_props if kept.get(entry.key) != entry.value]
    if lost or after.graph.doc_string != before.graph.doc_string:
        raise Broken(f"metadata {lost or 'doc_string'} are gone")


def _accepted(proto: onnx.ModelProto) -> bool:
    """Whether onnx's checker accepts a network: it wants the rank of every output, which some exporters leave out."""
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError:
        return False
    return True


def _described(values: Iterable[onnx.ValueInfoProto]) -> list[tuple[str, int, tuple[int | str, ...]]]:
    kinds = [(value.name, value.type.tensor_type) for value in values]
    return [
        (name, kind.elem_type, tuple(dim.dim_value or dim.dim_param for dim in kind.shape.dim))
        for name, kind in kinds
    ]


def _values(network: Network, after: onnx.ModelProto, floor: float, command: Command) -> None:
    theirs, runnable = _as_on_gpu(network.proto), _as_on_gpu(after)
    for feeds in (*network.samples[:2], *_joined(network)):
        wanted = run(theirs, feeds)
        try:
            made = run(runnable, feeds)
        except Unfit as error:
            if isinstance(error, NoKernel) and command.foreign:
                return
            raise Broken(f"onnxruntime refuses it: {error}") from error
        for name, value in wanted.items():
            if made[name].shape != value.shape or made[name].dtype != value.dtype:
                raise Broken(
                    f"{name} was {value.dtype}{value.shape} and is {made[name].dtype}{made[name].shape}"
                )
            nearness = sqnr(value, made[name])
            if (floor >= EXACT_DB or JUMPS.isdisjoint(network.operators)) and nearness < floor:
                raise Broken(f"{name} has {nearness:.1f} dB of at least {floor:.0f}")


def _as_on_gpu(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model that rounds every FP16 and BF16 tensor; onnxruntime's CPU alone rounds some of them only."""
    rounded = emulate_types(proto.SerializeToString())
    return proto if rounded is None else rounded[0].proto


def _joined(network: Network) -> list[dict[str, Array]]:
    """A batch of two samples, if the network has a free batch and takes it."""
    if not any(dim.dim_param for dim in network.proto.graph.input[0].type.tensor_type.shape.dim):
        return []
    first, second = network.samples[:2]
    feeds = {name: np.concatenate([first[name], second[name]]) for name in first}
    try:
        run(network.proto, feeds)
    except Unfit:
        return []
    return [feeds]


def sqnr(wanted: Array, made: Array) -> float:
    """Signal to noise in dB; a signal that rounding alone makes up counts as a signal of one."""
    one, other = wanted.astype(np.float64), made.astype(np.float64)
    noise = float(np.mean((one - other) ** 2))
    power = float(np.mean(one**2))
    if 0 < power <= TINY:  # the mean of what was normalized, for example
        power = 1.0
    return float("inf") if noise <= TINY else 10 * float(np.log10(max(power, TINY) / noise))


TINY = 1e-12
NOTHING_TO_DO = "no Q/DQ"
FORCED = {"place.skip_rules": ["gemv", "narrow", "min_channels"]}
PLAIN = {"calibrate.method": "max", "weights.equalize": "none", "weights.rounding": "nearest"}
PLAIN |= {"calibrate.bias": "keep", **FORCED}
"""Nothing is searched, and small nodes are quantized too."""


def _quantize(**settings: Any) -> Run:
    changes = {**PLAIN, **{key.replace("__", "."): value for key, value in settings.items()}}
    return lambda network, source, out: qdqtool.quantize(source, list(network.samples), out, settings=changes)


def _default(network: Network, source: Source, out: Path) -> object:
    return qdqtool.quantize(source, list(network.samples), out)


def _convert(types: Any) -> Run:
    return lambda network, source, out: qdqtool.convert(source, out, types)


def _prepare(network: Network, source: Source, out: Path) -> None:
    assert isinstance(source, Path)
    onnx.save(whole(prepare(load(source), PrepareOptions(transposes="move")).proto), out)


def _insert(network: Network, source: Source, out: Path) -> None:
    table = qdqtool.calibrate(source, list(network.samples), settings=PLAIN)
    qdqtool.insert(source, table, out, placement=qdqtool.place(source, settings=PLAIN), settings=PLAIN)


def _repair(network: Network, source: Source, out: Path) -> None:
    first = out.with_name("quantized.onnx")
    _quantize()(network, source, first)
    qdqtool.repair(first, out)


KNOWN: dict[str, Callable[[Network, str], bool]] = {}
"""Faults that are being worked on, and the findings that belong to them. An entry goes with its fault."""


def _repair_disturbed(network: Network, source: Source, out: Path) -> None:
    first, second = out.with_name("quantized.onnx"), out.with_name("disturbed.onnx")
    _quantize()(network, source, first)
    onnx.save(disturbed(onnx.load(first), network.seed), second)
    before, after = (run(onnx.load(path), network.samples[0]) for path in (first, second))
    assert all(sqnr(before[name], after[name]) > EXACT_DB for name in before), (
        "the disturbed model is another one"
    )
    qdqtool.repair(second, out)


COMMANDS: Mapping[str, Command] = {
    "prepare": Command(_prepare, EXACT_DB),
    "place and insert": Command(_insert, 5.0, lifted=True),
    "quantize": Command(_default, 5.0),
    "quantize int8": Command(_quantize(), 5.0, lifted=True),
    "quantize int8, stored": Command(_quantize(insert__weights="stored"), 5.0),
    "quantize int8 and fp16": Command(_quantize(insert__types="fp16"), 5.0),
    "quantize int8 and bf16": Command(_quantize(insert__types="bf16"), 5.0, foreign=True),
    "quantize fp8": Command(_quantize(place__format="fp8", place__sm=["120"]), 5.0),
    "quantize int8-weights": Command(_quantize(place__format="int8-weights"), 5.0),
    "quantize int4-weights": Command(_quantize(place__format="int4-weights"), 3.0),
    "quantize nvfp4": Command(_quantize(place__format="nvfp4", place__sm=["120"]), 3.0, foreign=True),
    "quantize mxfp8": Command(_quantize(place__format="mxfp8", place__sm=["120"]), 5.0, foreign=True),
    "quantize cross-layer": Command(_quantize(weights__equalize="cross-layer"), 5.0, lifted=True),
    "quantize smooth": Command(_quantize(weights__equalize="smooth"), 5.0, lifted=True),
    "quantize depthwise": Command(_quantize(weights__equalize="depthwise"), 5.0, lifted=True),
    "quantize gptq": Command(_quantize(weights__rounding="gptq"), 5.0),
    "quantize adaround": Command(_quantize(weights__rounding="adaround"), 5.0),
    "quantize, bias corrected": Command(_quantize(calibrate__bias="correct"), 5.0),
    "convert fp16": Command(_convert("fp16"), 30.0),
    "convert bf16": Command(_convert("bf16"), 10.0, foreign=True),
    "repair": Command(_repair, 5.0, lifted=True),
    "repair of another form": Command(_repair_disturbed, 5.0),
}
"""The commands that write a model, by a name for people."""
