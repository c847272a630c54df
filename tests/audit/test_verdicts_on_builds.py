"""Verdicts on real engines: every small graph is built with TensorRT for RTX and must come out as recorded."""

from __future__ import annotations

import pytest

from qdqtool.auditing import audit
from qdqtool.core.advice import repair_commands, with_files
from qdqtool.core.findings import NodeVerdict, Verdict
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.target import Target
from qdqtool.core.tensors import DType
from qdqtool.engine import read
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save as write
from tests.advice import applied, follow
from tests.audit.graphs import GRAPHS
from tests.models import save

pytestmark = pytest.mark.rtx
pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx (pip install 'qdqtool[rtx]')")

EXPECTED: dict[str, dict[str, tuple[str, str]]] = {
    "fine": {"c1": ("int8", ""), "c2": ("int8", ""), "c3": ("int8", "")},
    "float_weight": {
        "c1": ("int8", ""),
        "c2": ("fp32", "the weights have no Q/DQ, but the other input has"),
        "c3": ("int8", ""),
    },
    "float_activation": {"c2": ("fp32", "input 0 has no Q/DQ, but the other input has")},
    "scale_of_rank_one": {"c1": ("fp32", "shape [1] instead of []")},
    "scale_per_channel": {"c2": ("fp32", "one scale per channel")},
    "unequal_concat": {
        "c1": ("int8", ""),
        "c3": ("fp32", "the branches of cat have 2 different scales"),
    },
    "transposed_conv": {"c1": ("int8", ""), "up": ("fp32", "no ConvTranspose kernel in INT8")},
    "one_matrix_quantized": {"mm": ("fp32", "input 1 has no Q/DQ, but the other input has")},
    "both_matrices_quantized": {"mm": ("int8", "")},
    "matmul": {"mm": ("int8", "")},
    "matmul_wrong_axis": {"mm": ("fp32", "along axis 0, not along the output channels (axis 1)")},
    "matmul_float_weight": {"mm": ("fp32", "the weights have no Q/DQ, but the other input has")},
    "matmul_float_activation": {"mm": ("fp32", "the activation has no Q/DQ")},
    "weight_behind_transpose": {"mm": ("int8", "")},
    "attention": {"qk": ("int8", ""), "av": ("int8", ""), "q_proj": ("int8", ""), "out_proj": ("int8", "")},
    "attention_result_float": {"qk": ("int8", ""), "av": ("int8", "")},
    "attention_scores_rounded": {"qk": ("int8", ""), "av": ("int8", "")},
    "attention_float": {"qk": ("fp32", "no Q/DQ"), "av": ("fp32", "no Q/DQ"), "v_proj": ("int8", "")},
    "attention_scores_only": {"qk": ("int8", ""), "av": ("fp32", "no Q/DQ")},
    "attention_values_only": {"qk": ("fp32", "no Q/DQ"), "av": ("int8", "")},
    "dead_and_fixed": {
        "c1": ("int8", ""),
        "fixed": ("fp32", "this node multiplies constants, with the same result in every"),
    },
    "cast_between": {"c1": ("fp32", "Cast between DequantizeLinear and input 1")},
    "moves_between": {"c1": ("int8", "")},
    "turned_axis": {"c1": ("fp32", "axis 1 (axis 0 of the stored tensor), not along the output channels")},
    "padded_weight": {"c1": ("fp32", "Pad between DequantizeLinear and input 1")},
    "twice_rounded_weight": {"c1": ("int8", "")},
    "float_transposed_conv": {"c1": ("int8", ""), "up": ("fp32", "no INT8 kernel for ConvTranspose")},
    "squeezed": {"fc1": ("int8", ""), "fc2": ("unknown", "one kernel computes this node together")},
    "few_rows": {f"fc{rows}": ("fp32", "no Q/DQ") for rows in (2, 3, 4)},
    "vector_float_weight": {
        "c1": ("int8", ""),
        "fc": ("fp32", "the weights have no Q/DQ, but the other input has"),
    },
    "einsum": {"e": ("int8", "")},
    "unrolled": {
        "front": ("int8", ""),
        "lstm": ("fp32", "only multiply the input, once per step"),
        "head": ("int8", ""),
    },
    # Only generated kernels: nothing in the layers shows that TensorRT for RTX made them.
    "tiny_recurrence": {"lstm": ("fp32", "no INT8 kernel for LSTM")},
    "class_attention": {"qk": ("fp32", "single query"), "av": ("fp32", "single query")},
    "einsum_float_weight": {"e": ("fp32", "the weight has no Q/DQ")},
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Verdicts and findings of one graph, built once."""
    from qdqtool.backends.builders.rtx import PLUGIN as RTX

    made = {}

    def judge(name: str, target: str = "sm86"):
        if (name, target) not in made:
            folder = tmp_path_factory.mktemp(f"{name}-{target}")
            path = save(GRAPHS[name](), folder)
            RTX.build(BuildRequest(model=path, folder=folder, targets=(target,)))
            made[name, target] = audit(load(path), read(folder / "layers.txt"), targets=(target,))
        return made[name, target]

    return judge


def by_node(verdicts: tuple[NodeVerdict, ...]) -> dict[str, NodeVerdict]:
    return {verdict.node: verdict for verdict in verdicts}


def test_every_graph_has_an_expectation():
    assert set(EXPECTED) == set(GRAPHS)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_verdicts_and_reasons_match_what_the_builder_does(judged, name: str):
    found = by_node(judged(name).verdicts)
    for node, (precision, reason) in EXPECTED[name].items():
        assert found[node].precision == DType(precision), node
        assert reason in found[node].reason, node
        assert bool(found[node].fix) == bool(reason), node


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_requested_node_is_int8_or_has_a_finding(judged, name: str):
    result = judged(name)
    explained = {finding.subject for finding in result.findings if finding.reason and finding.fix}
    for verdict in result.verdicts:
        assert (
            verdict.precision is DType.INT8
            or verdict.node in explained
            or verdict.verdict is Verdict.ABSORBED
        )


def test_a_kernel_beside_a_float_node_names_what_fixes_that_node(judged):
    """Not what its own kind of kernel usually needs, which would not help here."""
    fixes = {
        name: {finding.check: finding.fix for finding in judged(name).findings}
        for name in ("scale_per_channel", "twice_rounded_weight", "float_transposed_conv", "squeezed")
    }
    assert fixes["scale_per_channel"]["runtime_weights"].startswith(
        "use one scale for the whole tensor; `qdqtool"
    )
    assert "keep only one of the successive Q/DQ pairs" in fixes["twice_rounded_weight"]["runtime_weights"]
    assert fixes["float_transposed_conv"]["unfused_qdq"].startswith("nothing to do")
    assert "`qdqtool repair --float fc1` leaves it float" in fixes["squeezed"]["unfused_qdq"]


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("attention_result_float", "put a Q/DQ pair directly after the second MatMul"),
        ("attention_scores_rounded", "remove the Q/DQ between the first MatMul and the softmax"),
        ("attention_float", "put Q/DQ on both inputs of both MatMul nodes"),
    ],
)
def test_an_attention_in_pieces_names_what_keeps_it_so(judged, name: str, fix: str):
    found = {finding.check: finding.fix for finding in judged(name).findings}
    assert fix in found["attention_not_fused"]


def test_a_product_of_two_activations_needs_both_quantized(judged):
    found = by_node(judged("attention_float").verdicts)
    put = "put Q/DQ on inputs 0 and 1: INT8 needs all of them"
    assert found["qk"].fix == f"nothing to do by a command; in the model, at 'qk': {put}"


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_what_is_printed_can_be_typed(judged, name: str):
    for told in (*judged(name).verdicts, *judged(name).findings):
        if told.fix:
            follow(told.fix)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_printed_command_makes_the_node_int8_or_takes_its_qdq_off(judged, name: str, tmp_path):
    """The commands are followed one by one on the model as it was; each build is a new one."""
    from qdqtool.backends.builders.rtx import PLUGIN as RTX

    before = by_node(judged(name).verdicts)
    for node, told in before.items():
        for number, command in enumerate(repair_commands(with_files(told.fix, "model.onnx"))):
            folder = tmp_path / f"{node}{number}".replace("/", "_")
            folder.mkdir()
            model = load(save(GRAPHS[name](), folder))
            made = folder / "made.onnx"
            write(applied(command, model, Target()), made)
            RTX.build(BuildRequest(model=made, folder=folder, targets=("sm86",)))
            after = by_node(audit(load(made), read(folder / "layers.txt"), targets=("sm86",)).verdicts)
            if node in after:  # else it was folded, or written as another operator
                assert after[node].precision is DType.INT8 or after[node].asked == "float", command


def test_attention_is_one_kernel_and_both_products_are_int8(judged):
    found = by_node(judged("attention").verdicts)
    assert (found["qk"].verdict, found["av"].verdict) == (Verdict.ATTENTION, Verdict.ATTENTION)
    assert found["qk"].layers == found["av"].layers


def test_merged_projections_share_a_kernel(judged):
    found = by_node(judged("attention").verdicts)
    assert found["q_proj"].layers == found["k_proj"].layers == found["v_proj"].layers


def test_a_kernel_that_dequantizes_first_is_called_so(judged):
    assert by_node(judged("matmul_wrong_axis").verdicts)["mm"].verdict is Verdict.PROLOGUE


def test_sm75_is_named_as_the_reason(judged):
    found = by_node(judged("fine", "sm75").verdicts)
    assert {verdict.precision for verdict in found.values()} == {DType.FLOAT32}
    assert all("SM75" in verdict.reason for verdict in found.values())


def test_float_islands_and_runtime_weights_are_found(judged):
    codes = {(finding.check, finding.subject) for finding in judged("float_activation").findings}
    assert ("float_island", "c2") in codes
    assert any(check == "runtime_weights" for check, _ in codes)


def test_a_clean_chain_has_only_its_epilogues_as_a_finding(judged):
    result = judged("fine")
    assert {finding.check for finding in result.findings} == {"separate_epilogues"}
    counts = result.counts
    assert (counts.kernels, counts.compute, counts.qdq) == (7, 3, 1)
    assert counts.activation_bytes_dumped == 77_824
    assert counts.activation_bytes_fused == 28_672
