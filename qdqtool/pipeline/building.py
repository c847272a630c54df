"""Builds, and where the builder refuses in words that name no node says which nodes `lint` objects to."""

from __future__ import annotations

from pathlib import Path

from qdqtool.backends import BUILDERS
from qdqtool.backends.building.retry import build_with_retries
from qdqtool.backends.targets import target_of
from qdqtool.core.build import BuildCost, BuildRequest, BuildResult, OnProgress
from qdqtool.core.findings import Severity
from qdqtool.core.protocols import Builder
from qdqtool.core.target import Target
from qdqtool.errors import BuildError, QdqError
from qdqtool.graph.endings import in_front_of
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.placement.lint import lint

CLASSIC_ONLY = frozenset({"NonMaxSuppression", "NonZero"})
"""Operators that classic TensorRT builds, and TensorRT for RTX has no kernel for: how much comes out depends on the data."""


_MOST = 3
"""Findings that are told with a refusal; `qdqtool lint` tells the others."""


def build_engine(
    builder: Builder,
    request: BuildRequest,
    on_progress: OnProgress | None = None,
    *,
    most: int = 3,
    source: Path | None = None,
) -> tuple[BuildResult, BuildCost]:
    """What `build_with_retries` gives; with a refusal stand the errors that lint finds for the same GPUs.

    A builder says of a type that a GPU lacks, and of much else, neither the node nor the rule. `source` is the model that the user
    gave, where another was made of it.

    Raises:
        BuildError: as the builder does.
    """
    try:
        return build_with_retries(builder, request, on_progress, most=most)
    except BuildError as error:
        _explain(error, builder, request, source or request.model)
        raise


def _explain(error: BuildError, builder: Builder, request: BuildRequest, source: Path) -> None:
    """Put behind a refusal what the model says about it; nothing for other builders and models that cannot be read."""
    if builder is not BUILDERS.load("rtx"):
        return
    try:
        model = load(request.model)
        found = _objections(model, request)
    except QdqError:
        return  # the refusal itself is what matters
    kernelless = [node for node in model.view.nodes if node.op in CLASSIC_ONLY]
    if kernelless:
        first = kernelless[0]
        error.add(f"TensorRT for RTX has no kernel for {first.op} ({first.name!r}), classic TensorRT has one")
        error.fix = _cut(model, first.op, source)
    elif found:
        error.add(f"lint says: {'; '.join(found)}")


def _cut(model: Model, op: str, source: Path) -> str:
    """How the model is ended in front of an operator, or built with what has it."""
    ends = in_front_of(model.view, CLASSIC_ONLY)
    inputs = [info.name for info in model.view.inputs]
    words = f"end the model in front of {op}, and do the rest outside the engine"
    if ends:
        words += f": python -c \"from onnx.utils import extract_model as cut; cut({str(source)!r}, 'cut.onnx', {inputs}, {list(ends)})\""
    return f"{words}; or build with classic TensorRT (--builder trtexec)"


def _objections(model: Model, request: BuildRequest) -> list[str]:
    """Errors of lint, each with rule, node and way out."""
    sm = [target_of(target).removeprefix("sm") for target in request.targets]
    first: dict[tuple[str, str], str] = {}
    for finding in lint(model, Target.parse("rtx", sm)).findings:
        if finding.severity is Severity.ERROR:
            words = f"{finding.code} at {finding.node!r}: {finding.reason}; {finding.fix}"
            first.setdefault((finding.code, finding.reason), words)
    return list(first.values())[:_MOST]
