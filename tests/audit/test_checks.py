"""Every check follows the contract of the registry, and counts."""

from __future__ import annotations

import inspect
import re

import pytest

from qdqtool.auditing.check import Check
from qdqtool.auditing.counts import counts
from qdqtool.auditing.run import CHECKS
from qdqtool.core.dtypes import DType
from qdqtool.engine import read_text
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
