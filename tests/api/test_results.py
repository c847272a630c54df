"""Results are frozen, short to look at, and become files, dicts and data frames."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.core.kinds import CALIBRATION, PLACEMENT
from qdqtool.core.sweep import Outcome, Sweep, Trial
from qdqtool.errors import UsageError

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"
MODEL = DIGITS / "digits.onnx"
IMAGES = np.load(DIGITS / "calibration.npz")["image"][:8]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    quantized = qdqtool.quantize(MODEL, IMAGES)
    found: dict[str, Any] = {
        "place": quantized.placement,
        "calibrate": quantized.calibration,
        "quantize": quantized,
        "insert": qdqtool.insert(MODEL, quantized.calibration, placement=quantized.placement),
        "convert": qdqtool.convert(quantized),
        "lint": qdqtool.lint(quantized),
        "predict": qdqtool.predict(quantized),
        "repair": qdqtool.repair(quantized),
        "compare": qdqtool.compare(MODEL, quantized, IMAGES),
        "sensitivity": qdqtool.sensitivity(quantized, IMAGES[:2], top=1),
    }
    if _has_builder():
        engine = qdqtool.build(quantized)
        found |= {
            "build": engine,
            "audit": qdqtool.audit(quantized, engine),
            "parse_log": qdqtool.parse_log(engine),
            "read_engine": qdqtool.read_engine(engine),
            "diff": qdqtool.diff(engine, engine),
            "diff of logs": qdqtool.diff(qdqtool.parse_log(engine), qdqtool.parse_log(engine)),
            "run": qdqtool.run(MODEL, IMAGES),
            "fix": qdqtool.fix(quantized, budget=0),
        }
    return found


def _has_builder() -> bool:
    from importlib.util import find_spec

    return find_spec("tensorrt_rtx") is not None


def test_every_call_but_the_sweep_is_tried_here(results: dict[str, Any]) -> None:
    if _has_builder():
        assert {name.partition(" ")[0] for name in results} == set(qdqtool.__all__) - {"sweep"}


def test_representations_fit_on_a_few_lines(results: dict[str, Any]) -> None:
    for name, result in results.items():
        assert len(repr(result)) < 400, name
        assert type(result).__name__ in repr(result)


def test_representations_say_the_result(results: dict[str, Any]) -> None:
    assert re.search(r"against .*SQNR \d+\.\d dB, \d+ sample", repr(results["compare"]))
    assert re.search(r"SQNR \d+\.\d dB; noise by ", repr(results["sensitivity"]))
    assert re.search(r"\d+ of \d+ inputs of nodes quantized, \d+ ranges", repr(results["quantize"]))
    assert re.search(r"\d+ ranges from \d+ sample", repr(results["calibrate"]))
    if _has_builder():
        run = results["run"]
        assert f": {run.verdict} (as asked: yes" in repr(run)


def test_results_with_figures_have_charts_and_others_say_so(results: dict[str, Any], tmp_path: Path) -> None:
    for name in ("sensitivity", *(["run"] if _has_builder() else [])):
        chart = results[name].plot()
        assert chart._repr_svg_().startswith("<svg ")
        assert chart.save(tmp_path / f"{name}.svg").read_text("utf-8").startswith("<svg ")
        with pytest.raises(UsageError, match="has no chart 'nothing'") as told:
            results[name].plot("nothing")
        assert "choose one of" in told.value.fix
    for name in ("calibrate", "place"):
        with pytest.raises(UsageError, match="has no chart"):
            results[name].plot()


def test_functions_are_metrics_under_their_names() -> None:
    def worst(reference: Any, candidate: Any) -> float:
        return float(abs(reference - candidate).max())

    def max_abs(reference: Any, candidate: Any) -> float:
        return 7.0

    found = qdqtool.compare(
        MODEL, MODEL, IMAGES, metrics=["cosine", "cosine", worst, max_abs, "max_abs", worst]
    )
    values = {entry.metric: entry.value for entry in found.outputs[0].measures}
    assert values == {
        "cosine": pytest.approx(1.0),
        "worst": 0.0,
        "max_abs_": 7.0,
        "max_abs": 0.0,
        "worst_": 0.0,
    }
    with pytest.raises(UsageError, match="metrics"):
        qdqtool.compare(MODEL, MODEL, IMAGES, metrics="cosine")
    with pytest.raises(UsageError):
        qdqtool.compare(MODEL, MODEL, IMAGES, metrics=["worst"])
    with pytest.raises(UsageError, match="does not take two arrays"):
        qdqtool.compare(MODEL, MODEL, IMAGES, metrics=[abs])


def test_results_cannot_be_changed(results: dict[str, Any]) -> None:
    for result in results.values():
        field = dataclasses.fields(result)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(result, field, None)


def test_results_show_themselves_in_a_notebook(results: dict[str, Any]) -> None:
    for name, result in results.items():
        page = result._repr_html_()
        assert page.startswith(f"<b>{type(result).__name__}</b>"), name
        assert len(page) < 300_000


def test_results_become_dicts_that_json_takes(results: dict[str, Any]) -> None:
    for result in results.values():
        assert json.loads(json.dumps(result.to_dict()))


def test_results_become_data_frames(results: dict[str, Any]) -> None:
    pandas = pytest.importorskip("pandas", reason="data frames need pandas")
    for result in results.values():
        assert isinstance(result.to_dataframe(), pandas.DataFrame)
    frame = results["quantize"].to_dataframe()
    assert list(frame["tensor"]) == [entry.tensor for entry in results["quantize"].ranges]
    assert len(results["place"].to_dataframe("decisions")) == len(results["place"].decisions)
    with pytest.raises(UsageError, match="no list called 'nothing'"):
        results["place"].to_dataframe("nothing")
    quantized = results["quantize"]
    assert len(quantized.to_dataframe("decisions")) == len(quantized.placement.decisions)
    assert len(quantized.to_dataframe("")) == len(quantized.ranges)
    for name in ("nothing", "samples"):  # the second is a number, not a list
        with pytest.raises(UsageError, match=rf"no list called '{name}'.*ranges.*decisions"):
            quantized.to_dataframe(name)


def test_what_an_entry_of_a_list_holds_stands_in_columns_of_its_own() -> None:
    pandas = pytest.importorskip("pandas", reason="data frames need pandas")
    found = Outcome(
        kernels=9, settings=("a=1",), accuracy=70.0, ms=2.0, nodes_int8=3, nodes_total=4, formats={"int8": 3}
    )
    trials = (
        Trial(number=0, state="pruned", reason="too slow"),
        Trial(number=1, state="complete", outcome=found),
    )
    sweep = Sweep(
        model="m",
        metric="top1",
        unit="%",
        reference=None,
        device="",
        spread=None,
        pareto=trials[1:],
        trials=trials,
    )
    frame = sweep.to_dataframe("trials")
    assert frame["outcome.accuracy"].tolist()[1] == 70.0
    assert pandas.isna(frame["outcome.accuracy"][0])
    assert frame["outcome.formats.int8"].tolist()[1] == 3
    assert not any(isinstance(value, dict) for column in frame for value in frame[column])


def test_results_are_saved_as_what_they_are(results: dict[str, Any], tmp_path: Path) -> None:
    for number, result in enumerate(results.values()):
        assert result.save(tmp_path / str(number)).exists()
    assert PLACEMENT.read(results["place"].save(tmp_path / "p.json")) == results["place"]
    assert CALIBRATION.read(results["calibrate"].save(tmp_path / "c.json")) == results["calibrate"]
    path = results["quantize"].save(tmp_path / "q.onnx")
    assert onnx.load(path).graph.node == results["quantize"].model.graph.node
    if "build" in results:
        folder = results["build"].save(tmp_path / "engine")
        assert {"engine.plan", "build.log", "layers.txt", "build.json"} <= {
            entry.name for entry in folder.iterdir()
        }


def test_steps_one_by_one_give_what_quantize_gives() -> None:
    placement = qdqtool.place(MODEL)
    table = qdqtool.calibrate(MODEL, IMAGES, placement=placement)
    steps = qdqtool.insert(MODEL, table, placement=placement)
    at_once = qdqtool.quantize(MODEL, IMAGES)
    # the metadata differ: `insert` sees no samples
    assert steps.model.graph == at_once.model.graph
    assert steps.calibration == at_once.calibration


def test_the_names_of_the_package_are_its_calls() -> None:
    probe = "import qdqtool; print(sorted(n for n in dir(qdqtool) if not n.startswith('_')))"
    found = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True).stdout
    assert found.strip() == str(sorted(qdqtool.__all__))


def test_signatures_and_manuals_are_real() -> None:
    import inspect
    import pydoc

    page = pydoc.plain(pydoc.render_doc(qdqtool))
    for name in qdqtool.__all__:
        call = getattr(qdqtool, name)
        assert not any(
            each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
            for each in inspect.signature(call).parameters.values()
        )
        assert "Args:" in (call.__doc__ or ""), name
        documented = (call.__doc__ or "").partition("Args:")[2]
        assert all(f"{each}:" in documented for each in inspect.signature(call).parameters), name
        assert f"{name}(" in page
