"""Models of people who quantized with other tools, rebuilt small: what they expect of each command."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.core.findings import LintFinding, Severity
from qdqtool.core.fixes import RepairReport
from qdqtool.core.target import Target
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline import recipes
from qdqtool.pipeline.readback import to_qdq
from qdqtool.pipeline.repair import RepairRequest, repair_file
from qdqtool.placement.lint import lint
from qdqtool.prediction.predict import predict
from tests.shared import SHARED, shared

pytestmark = pytest.mark.shared
FOLDER = "cases/handed"
TARGETS = {"nvfp4_scale_vec4": Target(sm=("120",)), "nvfp4_dyn_last": Target(sm=("120",))}
NAMES = (
    "nvfp4_scale_vec4",
    "nvfp4_dyn_last",
    "brevitas_qcdq_w4a8",
    "qonnx_quant",
    "conv_int8bq",
    "w4a8_matmul",
    "matmul_wrong_axis",
    "qat_float_head",
)


def _path(name: str) -> Path:
    return shared(f"{FOLDER}/{name}.onnx")


def _target(name: str) -> Target:
    return TARGETS.get(name, Target())


def _found(path: Path, target: Target) -> dict[str, LintFinding]:
    return {finding.code: finding for finding in lint(load(path), target).findings}


def _repaired(name: str, folder: Path) -> tuple[Path, RepairReport]:
    out = folder / "repaired.onnx"
    order = RepairRequest(model=_path(name), out=out, samples="", labels=None, recipe=recipes.load(None))
    return out, repair_file(order)


LINTED: dict[str, dict[str, str]] = {
    "nvfp4_scale_vec4": {"QDQ198": "`qdqtool repair` replaces them by one"},
    "nvfp4_dyn_last": {"QDQ199": "set it to 64, as the weight requires; `qdqtool repair` does this"},
    "brevitas_qcdq_w4a8": {},
    "qonnx_quant": {"QDQ193": "`qdqtool repair` does"},
    "conv_int8bq": {"QDQ110": "`qdqtool repair` does"},
    "w4a8_matmul": {"QDQ182": "as `qdqtool repair` does"},
    "matmul_wrong_axis": {"QDQ116": "write axis=1, the only one with 96 channels; `qdqtool repair` does"},
    "qat_float_head": {"QDQ155": "`qdqtool convert --types fp16`"},
}


@pytest.mark.parametrize("name", NAMES)
def test_lint_finds_what_is_wrong_and_a_fix_that_works(name: str) -> None:
    found = _found(_path(name), _target(name))
    assert set(found) == set(LINTED[name])
    assert all(words in found[code].fix for code, words in LINTED[name].items())


@pytest.mark.parametrize("name", NAMES)
def test_lint_ends_with_1_if_there_is_an_error(name: str) -> None:
    """Never with 70; "brevitas_qcdq_w4a8" is sound, and "qat_float_head" slower than it could be."""
    sm = [f"--sm={one}" for one in _target(name).sm or ()]
    sound = {"brevitas_qcdq_w4a8", "qat_float_head", "w4a8_matmul"}
    assert run(["lint", str(_path(name)), *sm]) == (0 if name in sound else 1)


COMPUTED = {
    "brevitas_qcdq_w4a8": (3, 3),
    "qat_float_head": (3, 7),
    "w4a8_matmul": (1, 1),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_predict_counts_as_the_builder_does(name: str) -> None:
    nodes = [node for node in predict(load(_path(name)), _target(name)).nodes if node.compute]
    assert (sum(node.realised == "int8" for node in nodes), len(nodes)) == COMPUTED[name]


@pytest.mark.parametrize("name", ["nvfp4_scale_vec4", "nvfp4_dyn_last", "qonnx_quant"])
def test_predict_says_that_nothing_is_built(name: str) -> None:
    assert any(
        note.startswith("nothing is built") for note in predict(load(_path(name)), _target(name)).notes
    )


@pytest.mark.parametrize("name", NAMES)
def test_after_the_repair_no_error_is_left(name: str, tmp_path: Path) -> None:
    out, report = _repaired(name, tmp_path)
    left = [one for one in _found(out, _target(name)).values() if one.severity is Severity.ERROR]
    assert (left, [one for one in report.remaining if one.refused]) == ([], [])


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_repaired_model_builds(name: str, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    out, _ = _repaired(name, tmp_path)
    sm = (_target(name).sm or ("86",))[0]
    assert run(["build", str(out), "--sm", sm, "--out", str(tmp_path / "b")]) == 0


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("w4a8_matmul", lambda found: "store the weights as INT8" in found["QDQ205"]),
        ("qat_float_head", lambda found: "QDQ213" not in found and "qdqtool convert" in found["QDQ212"]),
        ("brevitas_qcdq_w4a8", lambda found: "QDQ201" not in found),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_audit_gives_the_fix_that_lint_gives(
    name: str, check: Callable[[dict[str, str]], bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    assert run(["build", str(_path(name)), "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    run(["audit", str(_path(name)), "--layers", str(tmp_path / "layers.txt"), "--json"])
    found = json.loads(capsys.readouterr().out)["data"]["findings"]
    assert check({one["code"]: one["fix"] for one in found}), found


def test_a_build_says_what_lint_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    model = _path("nvfp4_scale_vec4")
    assert run(["build", str(model), "--sm", "120", "--out", str(tmp_path)]) == 4
    said = capsys.readouterr().err
    assert "Scale input must be a scalar" in said
    assert "QDQ198 at '/proj/input_quantizer/TRT_FP4DynamicQuantize'" in said


def test_inverted_scales_are_found_and_refused(capsys: pytest.CaptureFixture[str]) -> None:
    cache, model = shared(f"{FOLDER}/inverted.cache"), _path("small")
    assert run(["cache", "lint", str(cache), "--model", str(model)]) == 1
    said = capsys.readouterr().out
    assert "CAL126" in said
    assert "'images' would reach 1.613e+04; Relu" in said
    from qdqtool.calibration.caches import read_cache

    with pytest.raises(UsageError, match="127 / amax"):
        to_qdq(model, read_cache(cache), recipes.load(None))


def test_every_handed_model_has_a_case_here() -> None:
    with shared(f"{FOLDER}/EXPECTED.tsv").open(encoding="utf-8") as lines:
        handed = {name for row in csv.DictReader(lines, delimiter="\t") for name in row["file"].split()}
    models = {name.removesuffix(".onnx") for name in handed if name.endswith(".onnx")}
    elsewhere = {"log_front"}
    assert models - elsewhere == {*NAMES, "small"}
    assert (SHARED / FOLDER).is_dir()
