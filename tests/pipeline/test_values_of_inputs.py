"""Values of inputs that shapes may be computed from are read from the samples."""

from __future__ import annotations

import numpy as np

from qdqtool.core.protocols import InputProfile, Sample
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.pipeline.building import value_profiles


def test_values_of_few_integers_are_read_from_the_samples() -> None:
    inputs = (
        TensorInfo(name="x", dtype=DType.FLOAT32, shape=(1,)),
        TensorInfo(name="size", dtype=DType.INT64, shape=(2,)),
        TensorInfo(name="count", dtype=DType.INT32, shape=()),
        TensorInfo(name="tokens", dtype=DType.INT64, shape=(1, 8)),
        TensorInfo(name="free", dtype=DType.INT64, shape=("N",)),
        TensorInfo(name="many", dtype=DType.INT64, shape=(9,)),
    )
    sizes = [(4, 8), (2, 9), (3, 7)]
    feeds = [
        {"size": np.array(size), "count": np.array(number), "tokens": np.zeros((1, 8), np.int64)}
        for number, size in enumerate(sizes)
    ]
    samples = [Sample(name=str(number), feeds=values) for number, values in enumerate(feeds)]
    assert value_profiles(inputs, samples) == (
        InputProfile(name="size", low=(2, 7), opt=(4, 8), high=(4, 9), is_value=True),
        InputProfile(name="count", low=(0,), opt=(0,), high=(2,), is_value=True),
    )
    assert value_profiles(inputs, ()) == ()
    assert value_profiles(inputs[:1], samples) == ()
