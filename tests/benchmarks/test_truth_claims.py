"""The benchmark of sentences: an experiment can contradict a claim, and what is not tested never counts as true."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from pydantic import TypeAdapter

from qdqtool.core.claims import ADDS_A_KERNEL, HAS_NO_KERNEL, IS_GONE_THEN, RUNS_THEN, Assertion, Claim, Part
from tests.models import Sketch, save
from tests.shared import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from truth_claims import CONTRADICTED, OF_ENGINE, PROVEN, UNTESTED, Built, judged, together
from truth_edits import folded, quantized, quantizers
from truth_engine import Kernel, Tensor
from truth_figures import Figures

NODE = ("", "mm")


def engine(
    kind: str, more: int = 0, asked: str = "int8", findings: tuple[tuple[str, str], ...] = ()
) -> Built:
    """An engine of one matrix product of this type and `more` other kernels."""
    tensor = Tensor("x", (16, 16), kind)
    kernel = Kernel("gemm", "gemm", frozenset({"mm"}), (tensor, tensor), (), (tensor,))
    others = [Kernel(f"k{index}", "kgen", frozenset(), (), (), ()) for index in range(more)]
    return Built([kernel, *others], {"mm": asked}, ("mm",), findings)


def state(
    claim: Claim, after: Built | None, before: Built | None = None, subject: tuple[str, str] = NODE
) -> str:
    return judged(
        TypeAdapter(Claim).dump_python(claim, mode="json"),
        subject,
        before or engine("Float", 1, "float"),
        after,
    )


@pytest.mark.parametrize(
    ("claim", "after", "expected"),
    [
        (ADDS_A_KERNEL, engine("Int8", 2), PROVEN),
        (ADDS_A_KERNEL, engine("Int8", 1), CONTRADICTED),
        (ADDS_A_KERNEL, engine("Float", 2), PROVEN),
        (ADDS_A_KERNEL, engine("Int8", 2, "float"), UNTESTED),
        (HAS_NO_KERNEL, engine("Float"), PROVEN),
        (HAS_NO_KERNEL, engine("Int8"), CONTRADICTED),
        (HAS_NO_KERNEL, engine("Float", asked="float"), UNTESTED),
        (RUNS_THEN, engine("Int8"), PROVEN),
        (RUNS_THEN, engine("Float"), CONTRADICTED),
        (RUNS_THEN, Built([]), UNTESTED),
        (Claim(part=Part.COST, says=Assertion.KERNELS, kernels=-1), engine("Int8"), PROVEN),
        (Claim(part=Part.COST, says=Assertion.KERNELS, kernels=0), engine("Int8"), CONTRADICTED),
        (Claim(part=Part.COST, says=Assertion.QUANTIZED, nodes=1), engine("Int8"), PROVEN),
        (Claim(part=Part.COST, says=Assertion.QUANTIZED, nodes=0), engine("Int8"), CONTRADICTED),
    ],
)
def test_a_claim_is_judged_by_the_engine(claim: Claim, after: Built, expected: str) -> None:
    assert state(claim, after) == expected


@pytest.mark.parametrize(("loop", "expected"), [("", CONTRADICTED), ("(Unnamed Loop* 0)", PROVEN)])
def test_fewer_kernels_show_nothing_if_an_edit_changed_a_loop(loop: str, expected: str) -> None:
    as_large = Tensor("x", (32, 32), "Int8")
    kernel = Kernel(f"{loop}gemm", "gemm", frozenset({"mm"}), (as_large, as_large), (), (as_large,))
    claim = Claim(part=Part.FIX, says=Assertion.NOTHING_HELPS)
    assert state(claim, Built([kernel], {"mm": "int8"}, ("mm",))) == expected


def _claims_can_be_contradicted() -> dict[Assertion, tuple[Built, Built, tuple[str, str]]]:
    """For each statement an engine before and one after that contradict it, and the subject."""
    low, floats = engine("Int8", 1), engine("Float", 1, "float")
    half, found = engine("Half", 1), ("QDQ215", "mm")
    kernel, same = ("QDQ206", "gemm"), engine("Float", 1, "float", (found,))
    smaller, softmax = engine("Int8"), Built([Kernel("SubExpSum", "kgen", frozenset(), (), (), ())], {})
    return {
        Assertion.IS_FLOAT: (low, low, NODE),
        Assertion.STANDS_ALONE: (low, low, kernel),
        Assertion.FINISHES: (low, low, ("QDQ222", "the engine")),
        Assertion.FROM_CONSTANTS: (low, low, kernel),
        Assertion.WRITES_FLOAT: (low, low, kernel),
        Assertion.READS_FLOAT: (low, low, NODE),
        Assertion.CHANGES_FORM: (low, low, kernel),
        Assertion.NO_HALF: (half, half, NODE),
        Assertion.RANDOM: (replace(low, random=False), low, NODE),
        Assertion.IS_KEPT: (floats, floats, NODE),
        Assertion.QUANTIZES_MORE: (replace(floats, quantizers=1), replace(low, quantizers=1), NODE),
        Assertion.LOSES_ACCURACY: (replace(floats, noise=30.0), replace(low, noise=31.0), NODE),
        Assertion.MORE_KERNELS: (floats, low, NODE),
        Assertion.MORE_BYTES: (floats, low, NODE),
        Assertion.NO_KERNEL: (floats, low, NODE),
        Assertion.RUNS_QUANTIZED: (floats, floats, NODE),
        Assertion.STAYS_FLOAT: (floats, low, NODE),
        Assertion.HALF_THEN: (floats, floats, NODE),
        Assertion.FINDING_GONE: (same, same, found),
        Assertion.IS_TRIED: (floats, Built([], tried=0), NODE),
        Assertion.ANSWERS: (floats, Built([], answered=False), NODE),
        Assertion.STAYS_APART: (softmax, low, kernel),
        Assertion.NOTHING_HELPS: (floats, smaller, NODE),
        Assertion.QUANTIZED: (floats, low, NODE),
        Assertion.KERNELS: (floats, low, NODE),
        Assertion.BYTES: (floats, low, NODE),
    }


@pytest.mark.parametrize("says", Assertion)
def test_every_claim_can_be_contradicted_and_is_untested_where_nothing_builds(says: Assertion) -> None:
    claim = Claim(part=Part.REASON, says=says, kernels=5, nodes=5, percent=5)
    before, after, subject = _claims_can_be_contradicted()[says]
    assert state(claim, after, before, subject) == CONTRADICTED
    if says.value not in OF_ENGINE:
        assert state(claim, None) == UNTESTED


def test_a_finding_under_the_new_name_of_its_kernel_is_not_gone() -> None:
    before = engine("Float", 0, "float", (("QDQ215", "k1"),))
    renamed, gone = engine("Float", 0, "float", (("QDQ215", "k2"),)), engine("Float", 0, "float")
    assert state(IS_GONE_THEN, renamed, before, ("QDQ215", "k1")) == CONTRADICTED
    assert state(IS_GONE_THEN, gone, before, ("QDQ215", "k1")) == PROVEN


@pytest.mark.parametrize(("more", "expected"), [(8, PROVEN), (19, CONTRADICTED)])
def test_kernels_that_finish_products_are_counted_over_the_engine(more: int, expected: str) -> None:
    low, sums = Tensor("x", (16, 16), "Int8"), Tensor("sums", (16, 16), "Float")
    product = Kernel("gemm", "gemm", frozenset({"mm"}), (low, low), (), (sums,))
    last = Kernel("last", "kgen", frozenset(), (sums,), (), (low,))
    others = [Kernel(f"k{index}", "kgen", frozenset(), (low,), (), (low,)) for index in range(more)]
    before = Built([product, last, *others], {})
    claim = Claim(part=Part.REASON, says=Assertion.FINISHES)
    assert state(claim, None, before, ("QDQ222", "the engine")) == expected


def test_a_sentence_without_claims_is_untested_and_counts_as_nothing_else() -> None:
    assert together(()) == UNTESTED
    assert together((PROVEN, UNTESTED)) == UNTESTED
    assert together((PROVEN, CONTRADICTED, UNTESTED)) == CONTRADICTED
    figures = Figures()
    for one in (PROVEN, CONTRADICTED, UNTESTED):
        figures.count("reason", one)
    assert (figures.claims, figures.proven, figures.contradicted, figures.untested) == (3, 1, 1, 1)
    assert (figures.reasons, figures.reasons_true) == (2, 1)


def test_every_field_of_the_contract_is_in_the_last_line() -> None:
    wanted = {"claims", "proven", "contradicted", "untested", "advice", "advice_executed", "advice_works"}
    assert wanted <= Figures().summary().keys()
    assert "precision_untested" in Figures().summary()
    assert Path(ROOT / "benchmarks" / "truth.py").is_file()


def test_folding_by_hand_keeps_the_weights_that_are_quantized(tmp_path: Path) -> None:
    sketch = Sketch()
    sketch.output(sketch.conv("c1", sketch.input("in", [1, 8, 8, 8]), (8, 8)), [1, 8, 8, 8])
    path = save(sketch.model(), tmp_path)
    model = quantized(onnx.load(path), "c1")
    assert model is not None
    onnx.save(model, path)
    made = folded(path, tmp_path / "folded.onnx")
    assert made is not None
    onnx.checker.check_model(made)
    assert quantizers(made) == quantizers(model) == 2
