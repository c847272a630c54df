"""Kernels that only finish a low-bit product are counted, explained, and gone after the fix that is printed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qdqtool.auditing.checks.fusion import find_separate_epilogues as find
from qdqtool.auditing.context import ENGINE, stage
from qdqtool.cli.app import run
from qdqtool.core.advice import settings_in
from qdqtool.core.report import Worth
from qdqtool.core.tensors import DType
from qdqtool.engine import read_text
from qdqtool.engine.costs import FINISHES, counts, list_unfinished, merge_finishers
from qdqtool.engine.roofline import find_device
from qdqtool.pipeline import costs
from qdqtool.report.words import more_kernels
from tests import models
from tests.audit.scenes import engine, kernel
from tests.engine.records import CONV, EPILOGUE, QUANTIZE, dump

SPLIT = read_text(dump(QUANTIZE, CONV, EPILOGUE), where="test")


def test_an_engine_without_low_bit_products_finishes_nothing() -> None:
    plain = engine(*(kernel(f"k{number}", precision=DType.FLOAT16) for number in range(3)))
    assert list_unfinished(plain) == ()
    assert merge_finishers(plain) == plain
    assert not list(find(stage(plain)))


def test_a_finished_engine_moves_the_bytes_that_are_counted_as_fused() -> None:
    whole = merge_finishers(SPLIT)
    assert len(whole.kernels) == len(SPLIT.kernels) - 1
    assert counts(whole).activation_bytes_dumped == counts(SPLIT).activation_bytes_fused
    assert list_unfinished(whole) == ()


def test_few_such_kernels_are_no_finding() -> None:
    (found,) = find(stage(SPLIT))
    assert found.subject == ENGINE
    assert found.reason.startswith("1 of 3 kernels only finish")
    others = tuple(replace(SPLIT.kernels[0], name=f"k{number}") for number in range(8))
    assert not list(find(stage(replace(SPLIT, layers=(*SPLIT.layers, *others)))))


def test_the_range_of_the_times_covers_both_forms_of_the_engine() -> None:
    device = find_device("A10")
    worth, alone = (
        costs._estimate_worth(one, merge_finishers(SPLIT), device) for one in (SPLIT, merge_finishers(SPLIT))
    )
    assert worth.more == {FINISHES: 1}
    assert alone.more == {}
    assert worth.low < alone.low < 1 < worth.high == alone.high


@pytest.mark.parametrize(
    ("ours", "more", "said"),
    [
        (20, {"finishes": 11}, "20 kernels against 20"),
        (40, {"finishes": 18, "converts": 2}, "18 more only finish low-bit products"),
        (40, {"computes": 9, "finishes": 11}, ", 9 more compute products"),
    ],
    ids=["not more", "only the frequent kinds", "two kinds"],
)
def test_the_verdict_names_the_kernels_that_the_engine_has_more_of(
    ours: int, more: dict[str, int], said: str
) -> None:
    text = more_kernels(Worth(source="estimated", kernels=(ours, 20), more=more))
    assert said in text
    assert "reformat" not in text


@pytest.mark.rtx
@pytest.mark.slow
def test_the_printed_settings_leave_no_such_kernel(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx (pip install 'qdqtool[rtx]')")
    sketch = models.Sketch()
    x = sketch.input("x", (1, 8, 16, 16))
    for number in range(4):
        x = sketch.conv(f"conv{number}", x, (8, 8))
        x = sketch.node("Mul", [x, sketch.node("Sigmoid", [x], f"gate{number}")], f"swish{number}")
    sketch.output(x)
    path = models.save(sketch.model(), tmp_path)

    def made(name: str, *words: str) -> tuple[list[dict], dict]:
        out = tmp_path / name
        assert (
            run(
                [
                    "run",
                    str(path),
                    "--recipe",
                    "conv-int8",
                    "--samples",
                    "random:2",
                    "--out",
                    str(out),
                    *words,
                ]
            )
            == 0
        )
        return tuple(json.loads((out / file).read_text())["data"] for file in ("findings.json", "worth.json"))

    audit, worth = made("before")
    (found,) = (one for one in audit["findings"] if one["code"] == "QDQ222")
    assert worth["kernels"][0] > worth["kernels"][1]
    assert (
        f"{worth['more'][FINISHES]} of {worth['kernels'][0]} kernels only finish a low-bit Conv"
        in found["reason"]
    )
    assert "Sigmoid" in found["reason"]
    after, worth = made("after", *(word for one in settings_in(found["fix"]) for word in ("--set", one)))
    assert not [one for one in after["findings"] if one["code"] == "QDQ222"]
    assert worth["kernels"][0] == worth["kernels"][1]
