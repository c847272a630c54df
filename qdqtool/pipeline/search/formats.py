"""Proposes formats for the nodes that must leave INT8 to keep a limit of accuracy. The fastest engine wins.

The search of `pipeline.search.limited_run` finds the nodes with their float values exact. They need not be: FP8 has INT8's width and
17 powers of two more reach, FP16 half the width of FP32. Each node climbs only as far as the limit takes:

    FP8 (if every target runs it, and placement allows it for the node) -> FP16 -> the type of the float part

1. All nodes start on the lowest step; the whole model is written and run on all evaluation samples. While the limit does
   not hold, the node that the search found to matter most climbs one step. Then every node that climbed is tried one step
   lower once, the least useful first.
2. The same from FP16 on, since a network in three formats may cost more casts than narrow values save.
3. Every candidate that keeps the limit is built, and so is the model with all nodes in the type of the float part.
   The engine with the shortest time by the roofline wins: it counts bytes, weights, arithmetic and the start of every
   kernel. (The size of the plan says little: for a small network, most of it is code.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from typing import Final

from qdqtool.core.comparison import Comparison
from qdqtool.core.kinds import ENGINE, PLACEMENT
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.recipe import Recipe
from qdqtool.core.report import Report, Summary
from qdqtool.core.sensitivity import Alternative, EngineCost, FloatSet
from qdqtool.core.tensors import FP8
from qdqtool.engine.roofline import estimate, find_device, usual_device
from qdqtool.engine.view import view
from qdqtool.graph.view import GraphView
from qdqtool.io.json_files import digest_of
from qdqtool.pipeline import runner
from qdqtool.pipeline.request import ProgressListener, RunRequest
from qdqtool.pipeline.search.float_nodes import Limit, add_accuracy
from qdqtool.pipeline.steps import compare_outputs
from qdqtool.trt.ops import ELEMENTWISE_SUMS, FUSES_BEHIND_PRODUCT

FOLDER: Final = "alternatives"
"""Folder of the runs with other formats, in the run folder."""
FLOAT: Final = "float"
_FP8, _FP16 = "fp8", "fp16"
Formats = Mapping[str, str]
"""Format of each node: "fp8", "fp16" or "float"."""


def steps_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the formats for nodes that leave INT8, in this recipe and its targets, the fewest bits first."""
    builder, allowed = recipe.placing.builder, recipe.accuracy.alternatives
    runs_fp8 = bool(recipe.placing.sm) and all(
        word.isdigit() and int(word) >= FP8.sm for word in recipe.placing.sm
    )
    steps = [_FP8] if _FP8 in allowed and runs_fp8 and not builder.is_before(*FP8.release) else []
    steps += [_FP16] if _FP16 in allowed and recipe.float_type == "fp32" and builder.reads_half_scales else []
    return (*steps, FLOAT)


def with_formats(recipe: Recipe, formats: Formats, graph: GraphView) -> Recipe:
    """Return the recipe with these nodes in these formats. Nodes that TensorRT fuses with FP16 nodes become FP16 too."""
    small = {escape(node): _FP8 for node, word in formats.items() if word == _FP8}
    narrow = [node for node, word in formats.items() if word == _FP16]
    left = [node for node, word in formats.items() if word != _FP8]
    place = recipe.place.model_copy(
        update={
            "kept_float": tuple(dict.fromkeys((*recipe.place.kept_float, *left))),
            "formats": {**small, **recipe.place.formats, **small},
        }
    )
    changes: dict[str, object] = {"place": place}
    if narrow:
        names = tuple(escape(name) for name in _with_epilogues(graph, narrow))
        changes["insert"] = recipe.insert.model_copy(update={"types": "fp16", "narrow_nodes": names})
    return recipe.model_copy(update=changes)


def _with_epilogues(graph: GraphView, nodes: Sequence[str]) -> list[str]:
    """Return the nodes with the activations and one Add or Mul after them, so that no Cast splits their kernels."""
    covered = dict.fromkeys(nodes)
    waiting = [(name, True) for name in nodes]
    while waiting:
        name, may_sum = waiting.pop()
        for tensor in graph.by_name[name].outputs:
            for use in graph.uses(tensor):
                reader = use.node
                is_sum = reader.op in ELEMENTWISE_SUMS
                if reader.name in covered or not (reader.op in FUSES_BEHIND_PRODUCT or (is_sum and may_sum)):
                    continue
                covered[reader.name] = None
                waiting.append((reader.name, may_sum and not is_sum))
    return list(covered)


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Parameters of a search for formats: the nodes that must leave INT8, and the limit.

    Attributes:
        request: the run that was asked for.
        first: the run with every node quantized.
        kept: the nodes, the most useful first.
        limit: the limit that the written model must keep.
        listener: gets the progress of the steps of each try.
    """

    request: RunRequest
    first: RunRequest
    kept: tuple[str, ...]
    limit: Limit
    listener: ProgressListener


class Ladder:
    """Tries wider formats for nodes that must leave INT8. Equal assignments are tried once."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._steps = steps_of(question.request.recipe)
        self._graph = runner.start(question.first, "prepare").model("model.prepared.onnx").view
        self._device = find_device(device_of(question.request.recipe))
        self._tried: dict[str, Alternative] = {}

    def run(self, plain: Report) -> tuple[Alternative, ...]:
        """Return all tried formats. In the run of `plain`, all nodes outside INT8 have the float type."""
        whole = dict.fromkeys(self._question.kept, FLOAT)
        self._tried[_key(whole)] = self._alternative(whole, plain.comparison, plain.summary, FLOAT)
        for lowest in range(len(self._steps) - 1):
            climbed = self._climb_formats(lowest)
            if climbed is not None and climbed.cost is None:
                self._tried[_key(climbed.formats)] = self._build_narrowest(climbed)
        return tuple(self._tried.values())

    def request_of(self, formats: Formats) -> RunRequest:
        """Return a run in a separate folder, with the nodes in these formats."""
        question = self._question
        return replace(
            question.first,
            out=question.request.out / FOLDER / _key(formats)[:12],
            recipe=with_formats(question.first.recipe, formats, self._graph),
            histograms=question.first.out / "histograms.npz",
            table=question.first.out / "calibration.json",
        )

    def _climb_formats(self, lowest: int) -> Alternative | None:
        """Return the narrowest formats that keep the limit, none narrower than step `lowest`.

        None if only the float type keeps it.
        """
        kept = self._question.kept
        lower = {node: self._lowest(node, lowest) for node in kept}
        formats = dict(lower)
        best = self._measure_formats(formats)
        for node in kept:
            while not best.keeps and formats[node] != FLOAT:
                formats[node] = self._step_above(formats[node])
                best = self._measure_formats(formats)
        if not best.keeps:
            return None
        for node in reversed(kept):
            if formats[node] != lower[node]:
                fewer = {**formats, node: self._step_below(formats[node], lower[node])}
                tried = self._measure_formats(fewer)
                if tried.keeps:
                    formats, best = fewer, tried
        return None if best.is_float else best

    def _lowest(self, node: str, lowest: int) -> str:
        word = self._steps[lowest]
        if word == _FP8 and not self._takes_fp8(node):
            return self._steps[lowest + 1]
        return word

    def _takes_fp8(self, node: str) -> bool:
        """Return True if placement quantizes both operands of a node to FP8 when the recipe requests it."""
        work = runner.start(self.request_of({node: _FP8}), "place")
        return _is_fp8(PLACEMENT.read(work.path("placement.json")), node)

    def _step_above(self, word: str) -> str:
        return self._steps[self._steps.index(word) + 1]

    def _step_below(self, word: str, lowest: str) -> str:
        return self._steps[max(self._steps.index(word) - 1, self._steps.index(lowest))]

    def _measure_formats(self, formats: Formats) -> Alternative:
        """Write the model with these formats, and compare it on the evaluation samples."""
        alternative = self._tried.get(_key(formats))
        if alternative is None:
            work = runner.start(self.request_of(formats), "insert", self._question.listener)
            alternative = self._alternative(formats, compare_outputs(work), None, "")
            self._tried[_key(formats)] = alternative
        return alternative

    def _build_narrowest(self, narrowest: Alternative) -> Alternative:
        request = self.request_of(narrowest.formats)
        report = runner.run(request, self._question.listener, course=runner.TRIAL_LINE)
        folder = f"{FOLDER}/{request.out.name}"
        return self._alternative(narrowest.formats, report.comparison, report.summary, folder)

    def _alternative(
        self, formats: Formats, comparison: Comparison | None, summary: Summary | None, folder: str
    ) -> Alternative:
        layers = self._question.request.out / folder / "layers.json"
        shown = add_accuracy(
            FloatSet(kept=(), sqnr_db=None, task=None, int8_nodes=0, total_nodes=0), comparison
        )
        return Alternative(
            formats=dict(formats),
            sqnr_db=shown.sqnr_db,
            task=shown.task,
            keeps=self._question.limit.is_met(shown),
            cost=None if summary is None else cost_of(summary),
            ms=None if summary is None else estimate(view(ENGINE.read(layers)), self._device).ms,
            folder=folder,
        )


def fastest(tried: Sequence[Alternative]) -> Alternative:
    """Return the fastest engine that keeps the limit; the first engine if no engine keeps it."""
    keeping = [alternative for alternative in tried if alternative.keeps and alternative.ms is not None]
    return min(keeping, key=lambda alternative: alternative.ms or 0.0, default=tried[0])


def device_of(recipe: Recipe) -> str:
    """Return the GPU for which times are estimated."""
    return recipe.sweep.device or usual_device(recipe.build.sm)


def cost_of(summary: Summary) -> EngineCost:
    """Return the cost of the engine of a run."""
    return EngineCost(
        nodes_int8=summary.nodes_int8,
        kernels=summary.kernels,
        activation_bytes=summary.activation_bytes_fused,
        engine_bytes=summary.engine_bytes,
    )


def _is_fp8(placement: Placement, node: str) -> bool:
    formats = {
        decision.kind: decision.spec.format
        for decision in placement.quantized
        if decision.slot.node == node and decision.spec is not None
    }
    return SlotKind.ACTIVATION in formats and set(formats.values()) == {FP8}


def _key(formats: Formats) -> str:
    return digest_of(dict(formats))
