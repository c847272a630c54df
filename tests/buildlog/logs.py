"""Logs that several tests read: each is read once."""

from __future__ import annotations

import io
from functools import lru_cache

import pytest

from qdqtool import buildlog
from qdqtool.core.buildlog import BuildLog, LogRun
from tests.shared import shared

YOLOV8 = "seeds/002_678dd3e1edd457f1.txt"
MOBILENET_FPN = "seeds/003_f31fb2f90cf874bd.txt"
CULANE = "seeds/000_8d9d03533c4b8c7a.txt"
RESNET18 = "seeds/001_1208c14e4c3d6c5f.txt"
_VERBOSE = "corpus/verbose_log/"
BEVFUSION = (
    _VERBOSE + "cn-hezhu__BEVFusion-TensorRT-ROS__src__object_detection__model__resnet50int8__build__"
    "camera.backbone.log.xz"
)
BEVFUSION_JSON = (
    "corpus/layer_info/cn-hezhu__BEVFusion-TensorRT-ROS__src__object_detection__model__resnet50int8__build__"
    "camera.backbone.json"
)
RESNET_YOLO = (
    _VERBOSE + "NVIDIA__TensorRT__tools__experimental__trt-engine-explorer__src__notebooks__trt.out.xz"
)
RESNET_YOLO_JSON = "corpus/layer_info/NVIDIA__TensorRT__tools__experimental__trt-engine-explorer__src__notebooks__layer_info.json"


@lru_cache(maxsize=8)
def _read(path: str) -> BuildLog:
    return buildlog.read(path)


def shared_log(relative: str) -> BuildLog:
    """A log of the shared material, read; the test is skipped where it is absent."""
    return _read(str(shared(relative)))


def shared_run(relative: str) -> LogRun:
    """The only run of a log of the shared material."""
    (run,) = shared_log(relative).runs
    return run


def read_text(text: str) -> BuildLog:
    """A log written in the test."""
    return buildlog.read(io.BytesIO(text.encode()))


def run_of(text: str) -> LogRun:
    """The only run of a log written in the test."""
    runs = read_text(text).runs
    if len(runs) != 1:
        pytest.fail(f"the text holds {len(runs)} runs")
    return runs[0]
