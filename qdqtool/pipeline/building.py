"""Builds models. If the builder refuses a model without naming a node, adds the nodes that `lint` reports."""

from __future__ import annotations

from pathlib import Path

from qdqtool.backends import BUILDERS
from qdqtool.backends.building.procedure import build_with_retries
from qdqtool.backends.gpu import target_of
from qdqtool.core.build import BuildCost, BuildRequest, BuildResult, OnProgress
from qdqtool.core.findings import Severity
from qdqtool.core.protocols import Builder
from qdqtool.core.target import Target
from qdqtool.errors import BuildError, QdqError
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.load import load
from qdqtool.matching.refused import match_refused, way_out
from qdqtool.placement.lint import lint

_MOST = 3
"""Number of findings that are added to a refusal; `qdqtool lint` reports all of them."""


def build_engine(
    builder: Builder,
    request: BuildRequest,
    on_progress: OnProgress | None = None,
    *,
    most: int = 3,
    source: Path | None = None,
) -> tuple[BuildResult, BuildCost]:
    """Build with `build_with_retries`; add to a refusal the errors that lint finds for these GPUs.

    A builder says of a type that a GPU lacks, and of much else, neither the node nor the rule. `source` is the model
    that the user gave, if another was made of it.

    Raises:
        BuildError: as the builder does.
    """
    try:
        return build_with_retries(builder, request, on_progress, most=most)
    except BuildError as error:
        _explain(error, builder, request, source or request.model)
        raise


def _explain(error: BuildError, builder: Builder, request: BuildRequest, source: Path) -> None:
    """Add to a refusal what the model says about it; nothing for other builders and models that cannot be read."""
    if builder is not BUILDERS.load("rtx"):
        return
    try:
        model = load(request.model)
        found = _objections(model, request)
    except QdqError:
        return  # the refusal itself is what matters
    refused = next(match_refused(model.view, Target()), None)
    if refused is not None:
        node, reason = refused
        error.add(f"{reason} ({node.name!r})")
        error.fix = way_out(model.view, node, str(source))
    elif found:
        error.add(f"lint says: {'; '.join(found)}")


def refuse_early(builder: Builder, request: BuildRequest, source: Path) -> None:
    """Refuse a model that the builder's parser does not import, before anything is calibrated for it.

    Builders that cannot be asked without a build are not asked.

    Raises:
        BuildError: an operator or an attribute that is not imported, or that no kernel computes.
    """
    if builder is BUILDERS.load("rtx"):
        model = load(request.model)
        refused = next(match_refused(model.view, Target()), None)
        if refused is not None:
            node, reason = refused
            fix = way_out(model.view, node, str(source))
            raise BuildError(f"node {node.name!r}: {reason}", fix=fix, where=str(source))
    check = getattr(builder, "check_model", None)
    if check is not None:
        try:
            check(request)
        except BuildError as error:
            _explain(error, builder, request, source)
            raise


def _objections(model: Model, request: BuildRequest) -> list[str]:
    """Return errors of lint, each with rule, node and fix."""
    sm = [target_of(target).removeprefix("sm") for target in request.targets]
    first: dict[tuple[str, str], str] = {}
    for finding in lint(model, Target.parse("rtx", sm)).findings:
        if finding.severity is Severity.ERROR:
            words = f"{finding.code} at {finding.node!r}: {finding.reason}; {finding.fix}"
            first.setdefault((finding.code, finding.reason), words)
    return list(first.values())[:_MOST]
