"""The calibrator classes through the real Python bindings of TensorRT 8.6 and 10.7, over empty libraries.

The bindings come as wheels of 1 MB without the libraries that they bind. What is real here is the border: how pybind11
calls our methods, what it makes of what they return, and which types it takes.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.shared import ROOT

SYMBOLS = """
createInferBuilder_INTERNAL createInferRefitter_INTERNAL createInferRuntime_INTERNAL createNvOnnxParser_INTERNAL
createNvOnnxParserRefitter_INTERNAL getBuilderPluginRegistry getNvOnnxParserVersion getPluginRegistry initLibNvInferPlugins
_ZN11nvuffparser15createUffParserEv _ZN11nvuffparser8FieldMapC1EPKcPKvNS_9FieldTypeEi
_ZN14nvcaffeparser117createCaffeParserEv _ZN14nvcaffeparser123shutdownProtobufLibraryEv
"""
"""What both bindings link to; nothing of it is called here."""
ALGORITHMS = {"LegacyCalibrator": 0, "EntropyCalibrator": 1, "EntropyCalibrator2": 2, "MinMaxCalibrator": 3}
"""CalibrationAlgoType of NvInfer.h."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or platform.machine() != "x86_64", reason="the wheels are for Linux on x86-64"
    ),
    pytest.mark.skipif(shutil.which("cc") is None, reason="empty libraries are made with a C compiler"),
]

CLASSES = {
    "builder": "Builder",
    "parser": "OnnxParser",
    "config": "IBuilderConfig",
    "profile": "IOptimizationProfile",
}
"""Types of the variables of the example program."""


@dataclass(frozen=True)
class Release:
    """One release's bindings.

    Attributes:
        wheel: requirement of the wheel.
        major: release in the names of the libraries.
        first: place of getBatchSize in the table of virtual functions.
    """

    wheel: str
    major: int
    first: int


RELEASES = {
    "8.6.1": Release("tensorrt-bindings==8.6.1", 8, 0),
    "10.7.0": Release("tensorrt-cu12-bindings==10.7.0", 10, 4),
}


@pytest.fixture(scope="module", params=RELEASES)
def bindings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Release, Path]:
    release = RELEASES[request.param]
    folder = tmp_path_factory.mktemp("bindings")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run(
        [*words, "--retries=0", "--timeout=20", "--dest", str(folder), release.wheel],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        pytest.skip(f"{release.wheel} cannot be had here: {done.stderr.strip().splitlines()[-1:]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(folder)
    empty = folder / "empty.c"
    empty.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in SYMBOLS.split()))
    for name in ("nvinfer", "nvonnxparser", "nvparsers", "nvinfer_plugin"):
        library = f"lib{name}.so.{release.major}"
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-Wl,-soname,{library}", "-o", str(folder / library), str(empty)],
            check=True,
        )
    return release, next(folder.glob("tensorrt_bindings/tensorrt*.so"))


def through(library: Path, *words: str) -> Any:
    """What a program of Python says when it is run where the empty libraries are found."""
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(library.parent.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_everything_that_the_example_program_asks_of_tensorrt_is_there(
    bindings: tuple[Release, Path],
) -> None:
    """By the names in its text: of the module, and of the objects that it makes."""
    text = (ROOT / "recipes" / "examples" / "tensorrt_8_to_10" / "calibrate.py").read_text("utf-8")
    asked = set(re.findall(r"\btrt\.([A-Z][\w.]*)", text))
    _, _, build = text.partition("def build")
    for variable, kind in CLASSES.items():
        asked |= {f"{kind}.{name}" for name in re.findall(rf"\b{variable}\.(\w+)", build)}
    assert {"Builder.build_serialized_network", "IBuilderConfig.int8_calibrator", "BuilderFlag.INT8"} <= asked
    assert len(asked) >= 15
    code = (
        "import importlib.util, json, operator, sys\n"
        "spec = importlib.util.spec_from_file_location('tensorrt', sys.argv[1])\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "def known(name):\n"
        "    try: operator.attrgetter(name)(module)\n"
        "    except AttributeError: return False\n"
        "    return True\n"
        "print(json.dumps([name for name in sys.argv[2:] if not known(name)]))\n"
    )
    _, library = bindings
    assert through(library, "-c", code, str(library), *sorted(asked)) == []
    assert through(library, "-c", code, str(library), "Builder.max_vorkspace_size") != []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_builder_gets_batches_and_caches_through_the_bindings(
    name: str, bindings: tuple[Release, Path], tmp_path: Path
) -> None:
    release, library = bindings
    script = str(ROOT / "tests" / "calibrators" / "through_bindings.py")
    seen = through(library, script, str(library), str(release.first), name, str(tmp_path))
    assert seen["size"] == 1
    assert seen["algorithm"] == ALGORITHMS[name]
    assert seen["before"] is None
    # TensorRT asked for y before x.
    assert seen["batches"] == [[[5, 6], [1, 2]], [[0, 0], [3, 4]]]
    assert seen["after"] == seen["written"]
    assert seen["written"].startswith("TRT-8601-")
    assert seen["memory"] == 0
