"""Kernels by purpose, and the bytes that move between them."""

from __future__ import annotations

from collections import Counter, defaultdict

from qdqtool.core.audit import KernelCounts
from qdqtool.core.engine import Engine, EngineLayer, EngineTensor, Role


def counts(engine: Engine) -> KernelCounts:
    """How many kernels there are, what they are for, and how many activation bytes they read and write.

    Bytes are counted twice because a builder without a GPU leaves fusion to the device: as dumped, where the float
    result of an INT8 convolution is written and read again by the kernel that adds its bias, and with that kernel
    fused into the convolution (estimated). A tensor that a kernel lists twice is read once.
    """
    kernels = list(engine.kernels)
    dumped = _total([size for layer in kernels for size in _sizes(layer)])
    saved = _total([2 * size if size is not None else None for size in _fused_away(engine, kernels)])
    return KernelCounts(
        kernels=len(kernels),
        compute=sum(layer.role is Role.COMPUTE for layer in kernels),
        qdq=sum(layer.role is Role.QDQ for layer in kernels),
        activation_bytes_dumped=dumped,
        activation_bytes_fused=None if dumped is None or saved is None else dumped - saved,
    )


def _sizes(layer: EngineLayer) -> list[int | None]:
    inputs = {tensor.name: tensor for tensor in layer.inputs}
    return [tensor.bytes for tensor in (*inputs.values(), *layer.outputs)]


def _total(sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _fused_away(engine: Engine, kernels: list[EngineLayer]) -> list[int | None]:
    """Bytes of the tensors that stay in registers when each compute kernel swallows its epilogue.

    A result is swallowed when exactly one kernel reads it, that kernel works element by element, and it has not
    already been swallowed by another producer.
    """
    readers: dict[str, list[EngineLayer]] = defaultdict(list)
    for layer in kernels:
        for tensor in layer.inputs:
            readers[tensor.name].append(layer)
    writes = Counter(tensor.name for layer in kernels for tensor in layer.outputs)
    leaving = {binding.name for binding in engine.bindings}
    swallowed: set[str] = set()
    saved: list[int | None] = []
    for producer in reversed([layer for layer in kernels if layer.role is Role.COMPUTE]):
        result = _only(producer.outputs)
        users = readers[result.name] if result is not None else []
        if result is None or result.name in leaving or len(users) != 1 or writes[result.name] != 1:
            continue
        if users[0].pointwise and users[0].name not in swallowed:
            swallowed.add(users[0].name)
            saved.append(result.bytes)
    return saved


def _only(tensors: tuple[EngineTensor, ...]) -> EngineTensor | None:
    return tensors[0] if len(tensors) == 1 else None
