from __future__ import annotations

from dataclasses import replace

from qdqtool.auditing.counts import counts
from tests.audit.scenes import engine, kernel


def test_a_tensor_that_a_kernel_lists_twice_is_read_once():
    layer = kernel("conv", "conv")
    twice = replace(layer, inputs=layer.inputs * 2)
    assert counts(engine(twice)).activation_bytes_dumped == counts(engine(layer)).activation_bytes_dumped
