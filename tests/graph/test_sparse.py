"""Weights get the 2:4 pattern of sparse tensor cores, through Q/DQ and in every layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.auditing.full_audit import audit
from qdqtool.graph.sparse import has_pattern, sparse_nodes, sparsify
from qdqtool.placement.lint import lint
from tests import models
from tests.audit.scenes import engine, kernel
from tests.graph.placing import opened


def test_a_model_without_weights_stays_as_it_is(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Relu", [s.input("x", [2])], "y"), [2])
    model = opened(s.model(), tmp_path)
    result, names = sparsify(model)
    assert names == ()
    assert result.proto.graph == model.proto.graph


def _weighted(op: str, shape: tuple[int, ...], quantized: bool, **attributes: int) -> onnx.ModelProto:
    s = models.Sketch(3)
    weight = s.weight("w", *shape)
    if quantized:
        scale, zero = s.constant("s", np.float32(0.01)), s.constant("z", np.int8(0))
        s.node("QuantizeLinear", [weight, scale, zero], "wq")
        weight = s.node("DequantizeLinear", ["wq", scale, zero], "wd")
    x = s.input("x", [1, 6, 5, 5] if op == "Conv" else [3, 6])
    s.output(s.node(op, [x, weight], "y", name="n", **attributes))
    return s.model()


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "behind Q/DQ"])
@pytest.mark.parametrize(
    ("op", "shape", "axis", "attributes"),
    [
        pytest.param("Conv", (8, 6, 3, 3), 1, {}, id="Conv"),
        pytest.param("MatMul", (6, 8), 0, {}, id="MatMul"),
        pytest.param("Gemm", (6, 8), 0, {}, id="Gemm"),
        pytest.param("Gemm", (8, 6), 1, {"transB": 1}, id="Gemm transposed"),
    ],
)
def test_two_of_four_neighbours_along_the_sum_are_zero(
    op: str, shape: tuple[int, ...], axis: int, attributes: dict[str, int], quantized: bool, tmp_path: Path
) -> None:
    model = opened(_weighted(op, shape, quantized, **attributes), tmp_path)
    result, names = sparsify(model)
    assert names == ("w",)
    before, after = model.view.constant("w"), result.view.constant("w")
    assert before is not None
    assert after is not None
    old, new = np.moveaxis(before, axis, -1), np.moveaxis(after, axis, -1)
    assert (np.count_nonzero(new[..., :4], axis=-1) == 2).all()
    assert (np.abs(old[..., :4]).max(axis=-1) == np.abs(new[..., :4]).max(axis=-1)).all()
    assert (old[..., 4:] == new[..., 4:]).all(), "a rest of less than four stays whole"
    onnx.checker.check_model(result.proto, full_check=True)


def test_the_pattern_is_found_where_it_was_written(tmp_path: Path) -> None:
    for number, name in enumerate(("gemms", "conv_chain")):
        folder = tmp_path / str(number)
        folder.mkdir()
        model = opened(models.ALL[name](), folder)
        assert sparse_nodes(model.view) == ()
        sparse, changed = sparsify(model)
        found = sparse_nodes(sparse.view)
        assert found
        assert len(found) <= len(changed)


@pytest.mark.parametrize(
    ("rows", "is_found"),
    [
        ([[1, 0, 2, 0]], True),
        ([[1, 2, 0, 0], [0, 1, 1, 1]], False),
        ([[0, 0, 0, 0]], False),
        ([[0, 0, 1, 0], [0, 0, 0, 0]], False),
        ([[1, 0, 0]], False),
    ],
)
def test_two_of_four_neighbors_are_zero_and_some_are_not(rows: list[list[int]], is_found: bool) -> None:
    assert has_pattern(np.array(rows, np.float32), 1) is is_found


def test_lint_and_audit_name_sparse_weights(tmp_path: Path) -> None:
    model = opened(models.ALL["gemms"](), tmp_path)
    sparse, _ = sparsify(model)
    (first, *_) = names = sparse_nodes(sparse.view)
    for one, expected in ((model, 0), (sparse, 1)):
        assert sum("sparse tensor cores" in note for note in lint(one).notes) == expected
        found = audit(one, engine(kernel("dense", first)))
        assert sum(finding.code == "QDQ221" for finding in found.findings) == expected
    taken = audit(
        sparse, engine(*(replace(kernel(f"k{name}", name), tactic="sm86_sparse_imma") for name in names))
    )
    assert not any(finding.code == "QDQ221" for finding in taken.findings)
