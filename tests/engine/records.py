"""Layer records as builders print them, written by hand for tests."""

from __future__ import annotations


def tensor(name: str, dims: str = "1,8,16,16", dtype: str = "Int8") -> str:
    return (
        f"{{ Name: {name}, Dimensions: [{dims}], Strides: [1], StrideOrder: [0], "
        f"Datatype: {dtype}, Format: (Linear) Row major linear format }}"
    )


def record(
    name: str,
    kind: str = "correlation",
    *,
    inputs: tuple[str, ...] = (),
    constants: tuple[str, ...] = (),
    outputs: tuple[str, ...] = (),
    nodes: tuple[str, ...] = (),
    tactic: str = "__myelin_CASK_STUB",
) -> str:
    def listed(tensors: tuple[str, ...]) -> str:
        return f"[ {', '.join(tensors)}]" if tensors else "[]"

    metadata = "\x1f".join(f"[ONNX Layer: {node}]" for node in nodes)
    return (
        f"Name: {name}, LayerType: {kind}, Inputs: {listed(inputs)}, Constants: {listed(constants)}, "
        f"Outputs: {listed(outputs)}, TacticName: {tactic}, StreamId: 0, Metadata: {metadata}"
    )


def dump(*records: str, bindings: tuple[str, ...] = ()) -> str:
    lines = "".join(
        f" Name: {name}, IOMode: Input, DataType: Float, Dimensions: [1,3,8,8], Location: Device, "
        "IsShapeInferenceIO: false, ProfileInfo: [ { MinShape: [1,3,8,8], Format: Row major linear FP32 format (kLINEAR) }]\n"
        for name in bindings
    )
    return (
        "Layers:\n"
        + "\n".join(records)
        + f"\n\nI/O Tensors:\n{lines}\nEngine Metadata:\n Multi-Device: Disabled\n"
    )


CONV = record(
    "c1_myl0_1",
    inputs=(tensor("x_q"),),
    constants=(tensor("w", "16,8,3,3"), tensor("scale", "1,16,1,1", "Float")),
    outputs=(tensor("y", "1,16,16,16", "Float"),),
    nodes=("c1", "c1/DQ"),
)
QUANTIZE = record(
    "__myl_MulMinMaxRounCast_myl0_0",
    "kgen",
    inputs=(tensor("x", dtype="Float"),),
    outputs=(tensor("x_q"),),
    nodes=("c1/Q",),
    tactic="__myl_MulMinMaxRounCast_0x1",
)
EPILOGUE = record(
    "__myl_MulAddReluMulMinMaxRounCast_myl0_2",
    "kgen",
    inputs=(tensor("y", "1,16,16,16", "Float"),),
    outputs=(tensor("y_q", "1,16,16,16"),),
    nodes=("c1", "relu"),
)
