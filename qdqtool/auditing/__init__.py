"""Reports for every compute node of an engine in which precision it runs, why, and how to fix it."""

from qdqtool.auditing.context import stage
from qdqtool.auditing.full_audit import audit, examine
from qdqtool.auditing.verdicts import verdicts

__all__ = ["audit", "examine", "stage", "verdicts"]
