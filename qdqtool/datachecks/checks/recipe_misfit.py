"""Another shipped recipe is made for networks of this kind.

Recipes differ by kind of network: bias correction for depthwise convolutions, other calibrators for transformers, float
heads for detectors. `qdqtool recipe new MODEL` writes the matching recipe with its reasons.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.commands import Command
from qdqtool.core.findings import Severity
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt

_OF_PICTURES = frozenset({"conv-int8", "conv-depthwise-int8", "unet-int8"})
"""Recipes for images. Spectra look like images to a network; only the author of the recipe knows that the input is sound."""

_OF_SOUND = frozenset({"audio-int8", "audio-to-audio-int8"})


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield at most one doubt."""
    if evidence.fitting is None or evidence.fitting[0] == evidence.recipe:
        return
    name, why = evidence.fitting
    if evidence.recipe in _OF_SOUND and name in _OF_PICTURES:
        return
    yield Doubt(
        subject="recipe",
        reason=f"{evidence.recipe} is not the best recipe for this network; {name} fits, because {why}",
        fix=f"--recipe {name}, or {Command('recipe', ('new', 'MODEL'))}",
    )


PLUGIN = DataCheck(code="DAT108", severity=Severity.WARNING, find=find)
