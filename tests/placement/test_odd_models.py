"""What no exporter should write: a finding or a clear error, never a crash."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtool.errors import QdqError
from qdqtool.graph.load import load
from qdqtool.placement.lint import lint
from qdqtool.placement.predict.run import PROFILES, predict
from tests import models
from tests.placement.qdq import GRAPHS


def _node(proto, name):
    return next(node for node in proto.graph.node if node.name == name)


def _store(proto, name, values):
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.asarray(values), name))


def _cycle(proto):
    _node(proto, "c1_x/Q").input[0] = _node(proto, "relu2").output[0]


def _no_scale(proto):
    del _node(proto, "c1_x/Q").input[1:]


def _unmade_scale(proto):
    _node(proto, "c1_x/Q").input[1] = "ghost"


def _nan_scale(proto):
    _store(proto, "c1_x_s", np.float32(np.nan))


def _infinite_scale(proto):
    _store(proto, "c1_x_s", np.float32(np.inf))


def _negative_channel(proto):
    steps = np.full(16, 0.01, np.float32)
    steps[3] = -1
    _store(proto, "c1_w_s", steps)


def _empty_scale(proto):
    _store(proto, "c1_x_s", np.zeros(0, np.float32))


def _nameless(proto):
    for node in proto.graph.node:
        node.name = ""


def _one_name(proto):
    for node in proto.graph.node:
        node.name = "same"


def spoilt(spoil, folder):
    proto = GRAPHS["chain_ok"]()
    spoil(proto)
    path = folder / "model.onnx"
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_cycle, "cycle"),
        (_no_scale, "c1_x/Q"),
        (_unmade_scale, "ghost"),
        (_nan_scale, "NaN"),
    ],
    ids=["cycle", "no scale", "unmade scale", "nan scale"],
)
def test_what_cannot_be_read_is_an_error_that_names_the_place(spoil, words, tmp_path):
    with pytest.raises(QdqError, match=words):
        load(spoilt(spoil, tmp_path))


@pytest.mark.parametrize(
    ("spoil", "rule"),
    [(_infinite_scale, "scale_value"), (_negative_channel, "scale_value"), (_empty_scale, "scale_length")],
    ids=["infinite scale", "negative channel", "empty scale"],
)
def test_what_can_be_read_is_a_finding_and_still_predicted(spoil, rule, tmp_path):
    model = load(spoilt(spoil, tmp_path))
    assert {finding.rule for finding in lint(model).findings} == {rule}
    for profile in PROFILES:
        assert len(predict(model, profile).layers) > 1


@pytest.mark.parametrize("spoil", [_nameless, _one_name], ids=["no names", "one name"])
@pytest.mark.parametrize("profile", PROFILES)
def test_names_do_not_matter(profile, spoil, tmp_path):
    plain = predict(load(models.save(GRAPHS["chain_ok"](), tmp_path)), profile)
    (tmp_path / "spoilt").mkdir()
    model = load(spoilt(spoil, tmp_path / "spoilt"))
    assert lint(model).findings == ()
    assert len(predict(model, profile).layers) == len(plain.layers)
    assert [n.precision for n in predict(model, profile).nodes] == [n.precision for n in plain.nodes]


def test_a_single_scale_in_a_vector_fits_a_bias_of_one_dimension(tmp_path):
    s = models.Sketch()
    steps, zero = s.constant("steps", np.float32([0.01])), s.constant("zero", np.int32(0))
    bias = s.node(
        "DequantizeLinear", [s.constant("b_q", np.arange(8, dtype=np.int32)), steps, zero], "b", name="b/DQ"
    )
    s.output(s.node("Conv", [s.input("x", [1, 4, 6, 6]), s.weight("w", 8, 4, 1, 1), bias], "y", name="c"))
    found = lint(load(models.save(s.model(), tmp_path))).findings
    assert "scale_length" not in {finding.rule for finding in found}
