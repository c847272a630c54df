"""All kinds of JSON artefacts, by their file name in a run folder."""

from __future__ import annotations

from qdqtool.core.artefacts import Artefact
from qdqtool.core.buildlog import BuildLog
from qdqtool.core.calibration import CalibrationFile, CalibrationTable, ReadBack
from qdqtool.core.causes import Explained
from qdqtool.core.comparison import Comparison
from qdqtool.core.difference import EngineDiffs, LogDiff
from qdqtool.core.engine import Engine
from qdqtool.core.explore import EngineView
from qdqtool.core.findings import Audit, DataReport, LintReport, NoOpReport
from qdqtool.core.fixes import FixReport, RepairReport
from qdqtool.core.placement import Placement
from qdqtool.core.prediction import Prediction
from qdqtool.core.preparation import Conversion, Insertion, Preparation
from qdqtool.core.protocols import BuildResult
from qdqtool.core.qat import QatResult
from qdqtool.core.report import Report, Worth
from qdqtool.core.sensitivity import FloatLimit, Sensitivity
from qdqtool.core.sweep import Sweep

PREPARATION = Artefact(kind="preparation", schema=1, type=Preparation)
INSERTION = Artefact(kind="insertion", schema=1, type=Insertion)
CONVERSION = Artefact(kind="conversion", schema=1, type=Conversion)
PLACEMENT = Artefact(kind="placement", schema=1, type=Placement)
CALIBRATION = CalibrationFile(kind="calibration", schema=1, type=CalibrationTable)
BUILD = Artefact(kind="build", schema=1, type=BuildResult)
LOG = Artefact(kind="log", schema=1, type=BuildLog)
ENGINE = Artefact(kind="engine", schema=1, type=Engine)
ENGINE_DIFF = Artefact(kind="engine-diff", schema=1, type=EngineDiffs)
LOG_DIFF = Artefact(kind="log-diff", schema=1, type=LogDiff)
ENGINE_VIEW = Artefact(kind="engine-view", schema=1, type=EngineView)
NOOP = Artefact(kind="noop", schema=1, type=NoOpReport)
AUDIT = Artefact(kind="audit", schema=1, type=Audit)
ACCURACY = Artefact(kind="accuracy", schema=1, type=Comparison)
DATA = Artefact(kind="data", schema=1, type=DataReport)
WORTH = Artefact(kind="worth", schema=1, type=Worth)
PREDICTION = Artefact(kind="prediction", schema=1, type=Prediction)
LINT = Artefact(kind="lint", schema=1, type=LintReport)
SENSITIVITY = Artefact(kind="sensitivity", schema=1, type=Sensitivity)
LIMIT = Artefact(kind="limit", schema=1, type=FloatLimit)
REPORT = Artefact(kind="report", schema=2, type=Report)
READBACK = Artefact(kind="readback", schema=1, type=ReadBack)
REPAIR = Artefact(kind="repair", schema=1, type=RepairReport)
FIXES = Artefact(kind="fixes", schema=1, type=FixReport)
SWEEP = Artefact(kind="sweep", schema=1, type=Sweep)
EXPLANATION = Artefact(kind="explanation", schema=1, type=Explained)
QAT = Artefact(kind="qat", schema=1, type=QatResult)
