"""Every check follows the contract of the registry, and counts."""

from __future__ import annotations

import inspect
import re
from types import SimpleNamespace

import pytest

from qdqtool.auditing.context import Check
from qdqtool.auditing.full_audit import CHECKS
from qdqtool.core.findings import NodeVerdict, Verdict
from qdqtool.core.tensors import DType
from qdqtool.engine import read_text
from qdqtool.engine.costs import counts
from tests.audit.scenes import engine, kernel
from tests.engine.records import CONV, EPILOGUE, QUANTIZE, dump


@pytest.mark.parametrize("name", CHECKS.names())
def test_a_check_has_a_code_a_manual_and_a_function(name: str):
    check = CHECKS.load(name)
    assert isinstance(check, Check)
    assert re.fullmatch(r"QDQ2\d\d", check.code)
    manual = CHECKS.manual(name)
    assert len(manual.splitlines()) > 2
    assert manual.splitlines()[0].endswith(".")
    assert list(inspect.signature(check.find).parameters) == ["context"]


def test_codes_are_unique():
    codes = [CHECKS.load(name).code for name in CHECKS.names()]
    assert len(codes) == len(set(codes))


def test_an_empty_engine_counts_nothing():
    found = counts(engine())
    assert (found.kernels, found.compute, found.qdq, found.activation_bytes_dumped) == (0, 0, 0, 0)


def test_a_fused_epilogue_saves_a_write_and_a_read_of_the_float_result():
    found = counts(read_text(dump(QUANTIZE, CONV, EPILOGUE), where="test"))
    float_result = 4 * 16 * 16 * 16
    assert found.activation_bytes_dumped - found.activation_bytes_fused == 2 * float_result
    assert (found.kernels, found.compute, found.qdq) == (3, 1, 1)


def test_two_readers_of_a_result_prevent_its_fusion():
    second = EPILOGUE.replace("_myl0_2", "_myl0_3").replace("y_q", "z_q")
    found = counts(read_text(dump(QUANTIZE, CONV, EPILOGUE, second), where="test"))
    assert found.activation_bytes_dumped == found.activation_bytes_fused


def test_a_dynamic_shape_makes_bytes_unknown():
    dynamic = CONV.replace("Dimensions: [1,8,16,16]", "Dimensions: [-1,8,16,16]")
    found = counts(read_text(dump(dynamic), where="test"))
    assert (found.activation_bytes_dumped, found.activation_bytes_fused) == (None, None)


def test_counts_do_not_need_known_precisions():
    assert counts(engine(kernel("k", precision=DType.UNKNOWN))).compute == 1


@pytest.mark.parametrize(
    ("asked", "realised", "told"),
    [
        ("int8-weights", "float", "the engine stores the weight as floats: because"),
        ("int4-weights", "int4-weights dequantized before the kernel", "because"),
        ("int4-weights", "int4-weights", ""),
        ("int4-weights", "unknown", ""),
        ("int8", "float", ""),
    ],
)
def test_weights_that_were_to_be_stored_and_are_not_are_told(asked: str, realised: str, told: str):
    one = NodeVerdict(
        node="mm", op="MatMul", verdict=Verdict.FP16, precision=DType.FLOAT16, requested=False,
        reason="because", asked=asked, realised=realised,
    )  # fmt: skip
    context = SimpleNamespace(verdicts=(one,), at_node=str, at_layer=str)
    found = [draft.reason for draft in CHECKS.load("weights_before_kernel").find(context)]
    assert len(found) == bool(told)
    assert all(reason.endswith(told) for reason in found)
