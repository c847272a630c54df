"""Builds, and where the builder refuses in words that name no node says which nodes `lint` objects to."""

from __future__ import annotations

from qdqtool.backends import BUILDERS
from qdqtool.backends.building.retry import build_with_retries
from qdqtool.backends.targets import target_of
from qdqtool.core.build import BuildCost, BuildRequest, BuildResult, OnProgress
from qdqtool.core.findings import Severity
from qdqtool.core.protocols import Builder
from qdqtool.core.target import Target
from qdqtool.errors import BuildError, QdqError
from qdqtool.graph.onnx_io.load import load
from qdqtool.placement.lint import lint

_MOST = 3
"""Findings that are told with a refusal; `qdqtool lint` tells the others."""


def build_engine(
    builder: Builder, request: BuildRequest, on_progress: OnProgress | None = None, *, most: int = 3
) -> tuple[BuildResult, BuildCost]:
    """What `build_with_retries` gives; with a refusal stand the errors that lint finds for the same GPUs.

    A builder says of a type that a GPU lacks, and of much else, neither the node nor the rule.

    Raises:
        BuildError: as the builder does.
    """
    try:
        return build_with_retries(builder, request, on_progress, most=most)
    except BuildError as error:
        found = _objections(builder, request)
        if found:
            error.add(f"lint says: {'; '.join(found)}")
        raise


def _objections(builder: Builder, request: BuildRequest) -> list[str]:
    """Errors of lint, each with rule, node and way out; nothing for other builders and models that lint cannot read."""
    if builder is not BUILDERS.load("rtx"):
        return []
    sm = [target_of(target).removeprefix("sm") for target in request.targets]
    try:
        found = lint(load(request.model), Target.parse("rtx", sm)).findings
    except QdqError:
        return []  # the refusal itself is what matters
    first: dict[tuple[str, str], str] = {}
    for finding in found:
        if finding.severity is Severity.ERROR:
            words = f"{finding.code} at {finding.node!r}: {finding.reason}; {finding.fix}"
            first.setdefault((finding.code, finding.reason), words)
    return list(first.values())[:_MOST]
