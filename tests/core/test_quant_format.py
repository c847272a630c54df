"""Number formats as data."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest

from qdqtool.core.artefacts import Artefact
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import QuantSpec
from qdqtool.core.tensors import FORMATS, FP8, FP8_E5M2, INT4, INT8, MXFP8, NVFP4, SCHEMES, DType, of_dtype

_NUMPY = {
    DType.INT8: np.int8,
    DType.INT4: ml_dtypes.int4,
    DType.FLOAT8: ml_dtypes.float8_e4m3fn,
    DType.FLOAT8_E5M2: ml_dtypes.float8_e5m2,
    DType.FLOAT4: ml_dtypes.float4_e2m1fn,
}
SPEC = Artefact(kind="spec", schema=1, type=QuantSpec)
TABLE = Artefact(kind="table", schema=1, type=CalibrationTable)


@pytest.mark.parametrize("name", FORMATS)
def test_the_limits_of_a_format_are_those_of_its_element_type(name):
    entry = FORMATS[name]
    kind = _NUMPY[entry.dtype]
    info = ml_dtypes.iinfo(kind) if entry.is_integer else ml_dtypes.finfo(kind)
    assert (float(info.min), float(info.max)) == (entry.qmin, entry.qmax)
    assert entry.dtype.bits == (onnx.numpy_helper.from_array(np.zeros(2, kind)).raw_data.__len__() * 4)


@pytest.mark.parametrize("name", FORMATS)
def test_a_scheme_needs_no_format_that_is_not_listed(name):
    used = {entry for scheme in SCHEMES.values() for entry in (scheme.weights, scheme.activations) if entry}
    assert used <= set(FORMATS.values())
    assert str(FORMATS[name]) == name


def test_the_two_eight_bit_floats_are_different_types():
    assert DType.parse("FLOAT8E5M2") is DType.FLOAT8_E5M2
    assert DType.parse("FLOAT8E4M3FN") is DType.FLOAT8
    assert (of_dtype(DType.FLOAT8), of_dtype(DType.FLOAT8_E5M2)) == (FP8, FP8_E5M2)


@pytest.mark.parametrize(
    ("word", "dtype"),
    [("FP8UE8M0", DType.FLOAT8_E8M0), ("FP4E2M1", DType.FLOAT4), ("Int4", DType.INT4), ("FP8", DType.FLOAT8)],
)
def test_the_words_of_layer_dumps_are_known(word, dtype):
    assert DType.parse(word) is dtype


def test_eight_bit_floats_with_e8m0_block_scales_are_mxfp8():
    assert of_dtype(DType.FLOAT8, DType.FLOAT8_E8M0) is MXFP8
    assert of_dtype(DType.FLOAT4, DType.FLOAT8) is NVFP4
    assert of_dtype(DType.UINT8) is None


def test_an_int8_spec_is_written_as_before_formats_existed(tmp_path):
    SPEC.write(tmp_path / "s.json", QuantSpec(axis=0))
    assert '"data": {\n  "axis": 0,\n  "dtype": "int8"\n }' in (tmp_path / "s.json").read_text()


@pytest.mark.parametrize(
    "spec", [QuantSpec(), QuantSpec(format=FP8), QuantSpec(format=INT4, axis=0, block=64)]
)
def test_a_spec_comes_back_from_its_file(spec, tmp_path):
    SPEC.write(tmp_path / "s.json", spec)
    assert SPEC.read(tmp_path / "s.json") == spec


def test_one_range_gives_each_format_its_own_scale(tmp_path):
    entry = TensorRange(tensor="x", amax=(448.0,), format=FP8)
    assert entry.scales == (1.0,)
    assert entry.scales_in(INT8) == (448.0 / 127.0,)
    TABLE.write(tmp_path / "t.json", CalibrationTable(ranges=(entry,)))
    assert TABLE.read(tmp_path / "t.json").ranges == (entry,)
