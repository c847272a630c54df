"""Says what became of every compute node in an engine, why, and what to do about it."""

from qdqtool.auditing.context import stage
from qdqtool.auditing.full_audit import audit, counts, examine
from qdqtool.auditing.verdicts import verdicts

__all__ = ["audit", "counts", "examine", "stage", "verdicts"]
