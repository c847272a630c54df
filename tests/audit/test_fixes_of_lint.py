"""A check and lint say the same of a node of which both speak, and a build confirms the fix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.auditing.full_audit import audit
from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.core.advice import repair_commands, with_files
from qdqtool.core.findings import Finding
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.target import Target
from qdqtool.engine import read
from qdqtool.graph.onnx_io.load import load
from qdqtool.placement.lint import lint
from tests import models
from tests.advice import applied
from tests.placement.qdq import GRAPHS

pytestmark = pytest.mark.rtx


def test_a_weight_that_a_kernel_widens_gets_the_fix_that_lint_gives(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    path = models.save(GRAPHS["int4_channels_int8_activation"](), tmp_path)
    RTX.build(BuildRequest(model=path, folder=tmp_path, targets=("sm86",)))
    model = load(path)
    (asked,) = lint(model).findings
    found = [one for one in audit(model, read(tmp_path / "layers.txt")).findings if one.code == "QDQ205"]
    assert (asked.code, [one.fix for one in found]) == ("QDQ182", [asked.fix])


WIDENED = (
    "activation_per_channel",
    "activation_rank_one",
    "channel_pad_behind_pair",
    "concat_other_scales_bare",
    "conv_transpose",
    "conv_weight_axis_one",
    "int4_channels_int8_activation",
    "int4_weights_in_one_block",
    "int8_blocks_float",
    "resize_behind_pair",
)
"""Graphs of which an engine dequantizes a weight in every inference."""


def _runtime_weights(proto: onnx.ModelProto, folder: Path) -> list[Finding]:
    path = models.save(proto, folder, "built.onnx")
    RTX.build(BuildRequest(model=path, folder=folder / "b", targets=("sm86",)))
    return [
        one for one in audit(load(path), read(folder / "b" / "layers.txt")).findings if one.code == "QDQ205"
    ]


def test_a_stack_that_is_repeated_for_each_sample_is_not_called_dequantized(tmp_path: Path) -> None:
    """The kernel copies INT8 to INT8; without Q/DQ it copies four times as many bytes."""
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    s = models.Sketch()
    scale, zero = s.constant("scale", np.float32(0.01)), s.constant("zero", np.int8(0))

    def pair(tensor: str) -> str:
        s.node("QuantizeLinear", [tensor, scale, zero], f"{tensor}_q", name=f"{tensor}_q")
        return s.node("DequantizeLinear", [f"{tensor}_q", scale, zero], f"{tensor}_dq", name=f"{tensor}_dq")

    x, weights = pair(s.input("x", [2, 128, 1, 32])), pair(s.weight("w", 128, 32, 32))
    s.output(s.node("MatMul", [x, weights], "y", name="product"))
    (found,) = _runtime_weights(s.model(), tmp_path)
    assert found.reason.startswith("repeats a low-bit weight for every sample")
    assert found.fix.startswith("nothing to do: every sample")


@pytest.mark.parametrize("factors", [2, 3])
def test_an_einsum_of_several_factors_is_to_be_written_as_products_of_two(
    factors: int, tmp_path: Path
) -> None:
    """RTX multiplies Einsums of three factors in two kernels; Q/DQ on all inputs leaves the second in float."""
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    s = models.Sketch()
    inputs = [s.input(f"x{number}", [2, 32, 32]) for number in range(factors)]
    equation = ",".join(("bij", "bjk", "bkl")[:factors]) + "->bi" + "kl"[factors - 2]
    s.output(s.node("Einsum", inputs, "y", name="sum", equation=equation))
    path = models.save(s.model(), tmp_path, "built.onnx")
    RTX.build(BuildRequest(model=path, folder=tmp_path / "b", targets=("sm86",)))
    (verdict,) = audit(load(path), read(tmp_path / "b" / "layers.txt")).verdicts
    assert ("becomes several matrix products" in verdict.reason) is (factors > 2)
    assert ("Einsums of two operands" in verdict.fix) is (factors > 2)


@pytest.mark.slow
@pytest.mark.parametrize("graph", WIDENED)
def test_the_kernel_that_dequantizes_a_weight_is_gone_when_its_fix_is_typed(
    graph: str, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    model = load(models.save(GRAPHS[graph](), tmp_path))
    (found,) = _runtime_weights(GRAPHS[graph](), tmp_path)
    (command, *_) = repair_commands(with_files(found.fix, str(model.path)))
    assert _runtime_weights(applied(command, model, Target.parse("rtx")).proto, tmp_path) == []
