"""Checks of the user's data: samples, labels, preprocessing and recipe, and the resulting accuracy."""

from qdqtool.datachecks.all_checks import CHECKS, check_data
from qdqtool.datachecks.evidence import DataEvidence, InputStatistics, Predictions, SampleSet, Spread, Variant

__all__ = [
    "CHECKS",
    "DataEvidence",
    "InputStatistics",
    "Predictions",
    "SampleSet",
    "Spread",
    "Variant",
    "check_data",
]
