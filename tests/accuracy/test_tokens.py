"""Language models are judged by the next token, which the sample holds itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.accuracy import tokens
from qdqtool.accuracy.task import Task
from qdqtool.cli.app import run as cli
from qdqtool.core.protocols import Sample

VOCABULARY, WIDTH, LENGTH = 32, 16, 12
DRAW = np.random.default_rng(3)


def sides(draw: np.random.Generator, batch: int = 2) -> tuple[dict, dict, np.ndarray]:
    left = draw.standard_normal((batch, LENGTH, VOCABULARY)).astype(np.float32) * 3
    ids = draw.integers(0, VOCABULARY, (batch, LENGTH))
    rows, places = np.ogrid[:batch, : LENGTH - 1]
    left[rows, places, ids[:, 1:]] += 9  # a model that often knows what follows
    right = left + draw.standard_normal(left.shape).astype(np.float32)
    return {"logits": left}, {"logits": right}, ids


def test_hidden_states_in_the_shape_of_logits_are_not_judged() -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        hidden = draw.standard_normal((2, LENGTH, VOCABULARY)).astype(np.float32)
        sample = Sample(name="s", feeds={"input_ids": draw.integers(0, VOCABULARY, (2, LENGTH))})
        assert tokens.judged_tokens({"hidden": hidden}, {"hidden": hidden}, sample) is None


def test_hits_and_losses_are_those_of_a_loop_over_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_ROWS", 5)
    for seed in range(20):
        draw = np.random.default_rng(seed)
        left, right, ids = sides(draw)
        mask = (draw.random(ids.shape) < 0.8).astype(np.int64)
        found = tokens.judged_tokens(
            left, right, Sample(name="s", feeds={"input_ids": ids, "attention_mask": mask})
        )
        hits: list[tuple[bool, bool]] = []
        losses: list[tuple[float, float]] = []
        for row, place in np.ndindex(len(ids), LENGTH - 1):
            if mask[row, place] and mask[row, place + 1]:
                two = [side["logits"][row, place].astype(np.float64) for side in (left, right)]
                truth = ids[row, place + 1]
                hits.append((two[0].argmax() == truth, two[1].argmax() == truth))
                losses.append(tuple(float(np.log(np.exp(one).sum()) - one[truth]) for one in two))
        assert found is not None
        assert found.positions == len(hits)
        assert found.hits == pytest.approx(np.mean(hits, axis=0))
        assert found.losses == pytest.approx(np.mean(losses, axis=0))


@pytest.mark.parametrize(
    "feeds",
    [
        {"x": np.zeros((2, LENGTH), np.float32)},
        {"ids": np.zeros((2, LENGTH), np.int64), "other_ids": np.zeros((2, LENGTH), np.int64)},
        {"ids": np.full((2, LENGTH), VOCABULARY)},
        {"ids": np.zeros((2, LENGTH + 1), np.int64)},
        {"attention_mask": np.ones((2, LENGTH), np.int64)},
    ],
    ids=["floats", "two", "beyond the vocabulary", "another length", "a mask alone"],
)
def test_what_is_no_language_model_beyond_doubt_is_not_judged(feeds: dict) -> None:
    left, right, _ = sides(DRAW)
    assert tokens.judged_tokens(left, right, Sample(name="s", feeds=feeds)) is None


def test_a_model_that_finds_the_token_at_the_position_itself_is_judged_by_agreement() -> None:
    left, right, ids = sides(np.random.default_rng(1), batch=1)
    for place in np.ndindex(ids.shape):
        left["logits"][(*place, ids[place])] = 50.0
    found = tokens.judged_tokens(left, right, Sample(name="s", feeds={"input_ids": ids}))
    assert found is not None
    assert not found.is_causal
    task = Task("classify")
    task.add(left, right, Sample(name="s", feeds={"input_ids": ids}))
    (result,) = task.results()
    assert (result.metric, result.candidate) == ("agreement", pytest.approx(100 * found.same))
    assert not task.measures()


def test_the_mask_of_a_batch_counts_if_only_its_first_row_is_judged() -> None:
    left, right, ids = sides(np.random.default_rng(2))
    mask = np.ones_like(ids)
    mask[0, 5:] = 0
    first = [{"logits": side["logits"][:1]} for side in (left, right)]
    found = tokens.judged_tokens(*first, Sample(name="s", feeds={"ids": ids, "attention_mask": mask}))
    assert found is not None
    assert found.positions == 4


def perplexity_note(rises: list[float], positions: list[int]) -> str:
    both = tokens.Perplexity()
    for rise, count in zip(rises, positions, strict=True):
        both.record(
            tokens.TokenJudgement(hits=(1, 1), own=0, same=1, losses=(2.0, 2.0 + rise), positions=count)
        )
    return both.note()


def test_the_interval_of_the_perplexity_weights_samples_by_their_tokens_as_the_estimate_does() -> None:
    note = perplexity_note([0.0, *(0.9 + 0.02 * step for step in range(9))], [2000, *[5] * 9])
    found = re.search(r"\((\S+) %, 95 % interval (\S+) to (\S+) %\)", note)
    assert found is not None
    rise, low, high = map(float, found.groups())
    assert low <= rise <= high


def test_equal_models_have_a_perplexity_without_an_interval() -> None:
    assert perplexity_note([0.0] * 5, [7] * 5) == "perplexity 7.389 -> 7.389 (+0.00 %), 35 tokens"


def network(folder: Path) -> Path:
    """A table of the most likely next token, with two matrix products in front: it predicts ids of `text` well."""
    draw = np.random.default_rng(0)
    table = draw.standard_normal((VOCABULARY, WIDTH)).astype(np.float32)
    follow = np.roll(np.arange(VOCABULARY), -1)
    first = np.eye(WIDTH, dtype=np.float32) + 0.05 * draw.standard_normal((WIDTH, WIDTH)).astype(np.float32)
    last = np.linalg.lstsq((table @ first).astype(np.float64), 4 * np.eye(VOCABULARY)[follow], rcond=None)[0]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"], name="embed"),
        helper.make_node("MatMul", ["rows", "first"], ["hidden"], name="mix"),
        helper.make_node("MatMul", ["hidden", "last"], ["logits"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "language",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", LENGTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", LENGTH, VOCABULARY])],
        [
            numpy_helper.from_array(value.astype(np.float32), name)
            for name, value in {"table": table, "first": first, "last": last}.items()
        ],
    )
    path = folder / "language.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    starts = draw.integers(0, VOCABULARY, (64, 1))
    np.savez(folder / "text.npz", input_ids=(starts + np.arange(LENGTH)) % VOCABULARY)
    return path


def test_compare_says_how_often_the_next_token_is_right_and_the_perplexity(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, samples = network(tmp_path), f"{tmp_path / 'text.npz'}"
    made = tmp_path / "language.qdq.onnx"
    assert cli(["quantize", str(model), "--samples", samples, "--out", str(made)]) == 0
    capsys.readouterr()
    assert cli(["compare", str(model), str(made), "--samples", samples, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert [entry["metric"] for entry in found["task"]] == ["next_token"]
    assert found["task"][0]["samples"] == 64
    measure = next(one for one in found["outputs"][0]["measures"] if one["metric"] == "perplexity")
    assert 1 < measure["value"] < VOCABULARY
    assert any(note.startswith("perplexity ") for note in found["notes"])


def test_a_drop_of_the_next_token_can_be_limited_without_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = network(tmp_path)
    words = [
        "sensitivity",
        str(model),
        "--samples",
        f"{tmp_path / 'text.npz'}",
        "--max-drop",
        "0",
        "--no-causes",
    ]
    assert cli([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert found["whole"]["task"]["metric"] == "next_token"
