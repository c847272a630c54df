"""Models, samples, labels, recipes and settings are taken in every form that people have them in."""

from __future__ import annotations

import ast
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.api import inputs
from qdqtool.api.inputs import architectures_of, count_of, number_of
from qdqtool.api.progress import public, showing
from qdqtool.api.results import Quantized
from qdqtool.core.recipe import Recipe
from qdqtool.errors import Interrupted, QdqError, UsageError
from qdqtool.pipeline import recipes
from tests import models

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"
MODEL = DIGITS / "digits.onnx"
IMAGES = np.load(DIGITS / "calibration.npz")["image"][:24]
EVALUATION = np.load(DIGITS / "evaluation.npz")["image"][:40]
LABELS = np.load(DIGITS / "labels.npy")[:40]


class _Reader:
    """What onnxruntime calls a CalibrationDataReader."""

    def __init__(self) -> None:
        self._rows = iter(IMAGES)

    def get_next(self) -> dict[str, Any] | None:
        row = next(self._rows, None)
        return None if row is None else {"image": row[np.newaxis]}


class _Loader:
    """What a torch DataLoader gives: batches of inputs and labels, again in every pass."""

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for start in range(0, len(IMAGES), 10):
            batch = IMAGES[start : start + 10]
            yield batch, np.zeros(len(batch), np.int64)


class _Dataset:
    """What a torch data set offers: samples by number, and no iterator."""

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, number: int) -> tuple[Any]:
        return (IMAGES[number],)


class _Numbered:
    """What Polygraphy's DataLoader offers: feeds by number, until there are no more."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"image": IMAGES[number][np.newaxis]}


class _Tensor:
    """What a torch tensor offers to numpy."""

    dtype = "torch.float32"

    def __init__(self, array: Any) -> None:
        self._array = array

    def detach(self) -> _Tensor:
        return self

    cpu = detach

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self._array, dtype)


SAMPLES: dict[str, Callable[[], Any]] = {
    "one array of all samples": lambda: IMAGES,
    "a dict of arrays": lambda: {"image": IMAGES},
    "a list of arrays without a batch dimension": lambda: list(IMAGES),
    "a list of dicts": lambda: [{"image": row[np.newaxis]} for row in IMAGES],
    "a list of tuples with labels": lambda: [(row[np.newaxis], 3) for row in IMAGES],
    "a generator": lambda: (row for row in IMAGES),
    "a function that returns a generator": lambda: lambda: (row for row in IMAGES),
    "a loader of batches": _Loader,
    "a calibration data reader": _Reader,
    "a data set": _Dataset,
    "a loader by number": _Numbered,
    "tensors": lambda: [_Tensor(row) for row in IMAGES],
    "a path": lambda: DIGITS / "calibration.npz",
    "a spec": lambda: f"{DIGITS / 'calibration.npz'}[:24]",
}


@pytest.fixture(scope="module")
def reference() -> Quantized:
    return qdqtool.quantize(MODEL, f"{DIGITS / 'calibration.npz'}[:24]")


@pytest.mark.parametrize("form", SAMPLES)
def test_samples_of_every_form_give_the_same_ranges(form: str, reference: Quantized) -> None:
    settings = {"samples.limit": 24}
    found = qdqtool.quantize(MODEL, SAMPLES[form](), settings=settings)
    assert found.ranges == reference.ranges
    assert found.calibration.samples == 24
    assert _without_provenance(found) == _without_provenance(reference)


def _without_provenance(made: Quantized) -> bytes:
    """Return the model without the digest of its samples, which is one of files, of arrays or of code."""
    proto = onnx.ModelProto()
    proto.CopyFrom(made.model)
    kept = [entry for entry in proto.metadata_props if entry.key != "qdqtool.made.samples"]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    return proto.SerializeToString(deterministic=True)


def test_samples_that_are_no_numbers_are_left_out_where_the_settings_say_so() -> None:
    spoiled = np.insert(IMAGES, (3, 9), np.float32(np.nan), axis=0)
    with pytest.raises(QdqError, match=r"samples\[3\]: .*settings=.*samples.nan=skip"):
        qdqtool.quantize(MODEL, spoiled)
    settings = {"samples.nan": "skip"}
    found, wanted = (qdqtool.quantize(MODEL, each, settings=settings) for each in (spoiled, IMAGES))
    assert found.ranges == wanted.ranges
    assert qdqtool.compare(MODEL, MODEL, spoiled, settings=settings).samples == len(IMAGES)


@pytest.mark.parametrize("extra", [np.arange(24 * 5).reshape(24, 5), np.arange(24.0), np.arange(3)])
def test_arrays_that_feed_no_input_leave_a_batch_as_it_is(extra: Any, reference: Quantized) -> None:
    assert qdqtool.quantize(MODEL, [{"image": IMAGES, "extra": extra}]).ranges == reference.ranges


def test_models_of_every_form_give_the_same_result(reference: Quantized, tmp_path: Path) -> None:
    graphs = pytest.importorskip("onnx_graphsurgeon", reason="graphs of onnx-graphsurgeon need it")
    proto = onnx.load(MODEL)
    (tmp_path / "onnx").mkdir()
    onnx.save(proto, tmp_path / "onnx" / "model.onnx")
    for model in (str(MODEL), tmp_path, proto, graphs.import_onnx(proto)):
        assert qdqtool.quantize(model, IMAGES).ranges == reference.ranges
    assert qdqtool.lint(reference).pairs == qdqtool.lint(reference.model).pairs > 0
    assert qdqtool.lint(reference.graph()).pairs == qdqtool.lint(reference).pairs


def test_a_large_model_in_memory_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SINGLE_FILE_LIMIT", 1000)
    model = onnx.load(MODEL)
    before = model.SerializeToString(deterministic=True)
    with inputs.model_files(model) as (path,):
        assert len(list(path.parent.iterdir())) == 2
        assert onnx.load(path).graph.node == model.graph.node
    assert model.SerializeToString(deterministic=True) == before


def test_recipes_of_every_form_are_the_same_recipe() -> None:
    wanted = qdqtool.place(MODEL, recipe="conv-int8", settings=["place.first_layer=float"])
    base: Recipe = recipes.load("conv-int8")
    forms: list[tuple[Any, Any]] = [
        ("conv-int8", {"place.first_layer": "float"}),
        ("conv-int8", {"place": {"first_layer": "float"}}),
        ({"extends": "conv-int8", "place": {"first_layer": "float"}}, {}),
        (base, {"place.first_layer": "float"}),
        (recipes.load("conv-int8", ["place.first_layer=float"]), ()),
        (recipes.folder() / "conv-int8.yaml", {"place.first_layer": "float"}),
    ]
    for recipe, settings in forms:
        assert qdqtool.place(MODEL, recipe=recipe, settings=settings) == wanted
    assert wanted != qdqtool.place(MODEL)


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_in_memory_states_no_more_than_its_file(name: str) -> None:
    """Values that a recipe states for pictures replace those that the model states."""
    recipe = recipes.load(name)
    given = inputs.recipe_of(recipe)
    assert given == recipe
    assert given.samples.preprocess.model_fields_set == recipe.samples.preprocess.model_fields_set


@pytest.mark.parametrize(
    "labels",
    [LABELS, list(map(int, LABELS)), {f"samples[{n}]": int(label) for n, label in enumerate(LABELS)}],
    ids=["an array", "a list", "a dict by name"],
)
def test_labels_in_memory_are_scored(labels: Any, reference: Quantized) -> None:
    found = qdqtool.compare(MODEL, reference, EVALUATION, labels=labels)
    assert found.task[0].metric == "top1"
    assert found.task[0].reference == 100 * float(np.mean(_classes(EVALUATION) == LABELS))


def _classes(images: Any) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(MODEL))
    return np.concatenate([session.run(None, {"image": row[np.newaxis]})[0].argmax(1) for row in images])


def test_labels_beside_the_samples_are_scored(reference: Quantized) -> None:
    pairs = [(row[np.newaxis], int(label)) for row, label in zip(EVALUATION, LABELS, strict=True)]
    assert (
        qdqtool.compare(MODEL, reference, pairs).task
        == qdqtool.compare(MODEL, reference, EVALUATION, labels=LABELS).task
    )


@pytest.mark.slow
def test_a_free_dimension_takes_the_shape_of_the_samples_or_one_and_says_so(reference: Quantized) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    alone = qdqtool.build(reference)
    assert [profile.opt for profile in alone.result.profiles] == [(1, 1, 8, 8)]
    assert "built for 1x1x8x8" in " ".join(alone.notes)
    given = qdqtool.build(reference, shapes={"image": ((1, 1, 8, 8), (4, 1, 8, 8), (8, 1, 8, 8))})
    assert [(each.low[0], each.opt[0], each.high[0]) for each in given.result.profiles] == [(1, 4, 8)]
    assert not given.notes
    assert qdqtool.audit(reference).verdicts == qdqtool.audit(reference, alone).verdicts


MISTAKES: dict[str, Callable[[], object]] = {
    "a model of a wrong kind": lambda: qdqtool.place(3),  # type: ignore[arg-type]
    "a pair that is no module": lambda: qdqtool.place((1, 2)),
    "a model that is not there": lambda: qdqtool.place("nowhere.onnx"),
    "samples of a wrong kind": lambda: qdqtool.quantize(MODEL, 5),
    "samples that do not fit": lambda: qdqtool.quantize(MODEL, np.zeros((4, 3, 8, 8), np.float32)),
    "samples that are not numbers": lambda: qdqtool.quantize(MODEL, [["a", "b"]]),
    "samples of unequal length": lambda: qdqtool.quantize(MODEL, [[[1.0, 2.0], [3.0]]]),
    "samples that raise": lambda: qdqtool.quantize(MODEL, _raises),
    "no samples": lambda: qdqtool.quantize(MODEL, []),
    "a tuple of too many inputs": lambda: qdqtool.quantize(MODEL, [(IMAGES[0], IMAGES[0], IMAGES[0])]),
    "labels of a wrong kind": lambda: qdqtool.compare(MODEL, MODEL, IMAGES, labels=[0.5]),
    "too few labels": lambda: qdqtool.compare(MODEL, MODEL, IMAGES, labels=[1]),
    "an unknown recipe": lambda: qdqtool.place(MODEL, recipe="conv"),
    "a recipe of a wrong kind": lambda: qdqtool.place(MODEL, recipe=5),  # type: ignore[arg-type]
    "an unknown setting": lambda: qdqtool.place(MODEL, settings={"place.first": 1}),
    "settings of a wrong kind": lambda: qdqtool.place(MODEL, settings="place.first_layer=float"),
    "a setting that is no data": lambda: qdqtool.place(MODEL, settings={"place.ops": object()}),
    "shapes of a wrong kind": lambda: qdqtool.build(MODEL, shapes="image:1x1x8x8"),  # type: ignore[arg-type]
    "a shape of words": lambda: qdqtool.build(MODEL, shapes={"image": ("a", "b")}),  # type: ignore[dict-item]
    "a shape that does not fit": lambda: qdqtool.build(MODEL, shapes={"image": (1, 3, 8, 8)}),
    "an unknown builder": lambda: qdqtool.build(MODEL, builder="none"),
    "an out of a wrong kind": lambda: qdqtool.quantize(MODEL, IMAGES, 7),  # type: ignore[arg-type]
    "a missing range": lambda: qdqtool.insert(MODEL, "nowhere.json"),
    "arguments in the wrong order": lambda: qdqtool.insert(MODEL, qdqtool.place(MODEL)),  # type: ignore[arg-type]
    "an unknown target": lambda: qdqtool.lint(MODEL, target="7"),
    "a target that is no word": lambda: qdqtool.lint(MODEL, target=[86]),  # type: ignore[arg-type]
    "an architecture that is no word": lambda: qdqtool.build(MODEL, sm=object()),  # type: ignore[arg-type]
    "checks that are no words": lambda: qdqtool.audit(MODEL, "layers.txt", ignore=3),  # type: ignore[arg-type]
    "no workers": lambda: qdqtool.sensitivity(MODEL, IMAGES, workers=-1),
    "no samples of an estimate": lambda: qdqtool.sensitivity(MODEL, IMAGES, quick=0),
    "no trials": lambda: qdqtool.sweep(MODEL, IMAGES, trials=0),
    "progress that cannot be called": lambda: qdqtool.quantize(MODEL, IMAGES, progress=3),  # type: ignore[arg-type]
    "an unknown empty section": lambda: qdqtool.place(MODEL, recipe={"plaec": {}}),
    "a log that is none": lambda: qdqtool.parse_log(MODEL),
    "a text that is no log": lambda: qdqtool.parse_log("no line\nof a builder\n"),
    "labels of other samples": lambda: qdqtool.compare(MODEL, MODEL, IMAGES, labels={"cat.png": 1}),
    "a shape that is no row": lambda: qdqtool.build(MODEL, shapes={"image": 8}),  # type: ignore[dict-item]
    "a shape of another size": lambda: qdqtool.build(MODEL, shapes={"image": (1, 1, 9, 9)}),
    "a shape of an unknown input": lambda: qdqtool.build(MODEL, shapes={"pixels": (1, 1, 8, 8)}),
    "a placement of a wrong kind": lambda: qdqtool.audit(MODEL, "layers.txt", placement=3),  # type: ignore[arg-type]
    "an unknown check": lambda: qdqtool.audit(MODEL, ignore=["QDQ999"]),
    "reasons without codes": lambda: qdqtool.lint(MODEL, ignore=["QDQ101"]),  # type: ignore[arg-type]
    "a budget of words": lambda: qdqtool.fix(MODEL, budget="all"),  # type: ignore[arg-type]
    "seconds of words": lambda: qdqtool.fix(MODEL, seconds="all"),  # type: ignore[arg-type]
    "a drop that is no number": lambda: qdqtool.fix(MODEL, max_drop=float("nan")),
    "a limit of words": lambda: qdqtool.sensitivity(MODEL, IMAGES, min_sqnr="30 dB"),  # type: ignore[arg-type]
    "a text that is no layer information": lambda: qdqtool.read_engine("no layer\nof an engine\n"),
    "a place to save that is no path": lambda: qdqtool.place(MODEL).save(3),  # type: ignore[arg-type]
    "a place of a model that is no path": lambda: qdqtool.convert(MODEL).save(3),  # type: ignore[arg-type]
    "a reference for a float model": lambda: qdqtool.run(MODEL, IMAGES, reference=MODEL),
}


def _raises() -> object:
    raise RuntimeError("the disk is gone")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_an_error_in_words_of_the_library(mistake: str) -> None:
    with pytest.raises(QdqError) as caught:
        MISTAKES[mistake]()
    assert caught.value.fix
    options = re.findall(r"--[\w-]+", str(caught.value))
    assert set(options) <= {"--exportLayerInfo"}, str(caught.value)  # trtexec's
    assert f"{tempfile.gettempdir()}/qdqtool-" not in str(caught.value), str(caught.value)


def test_a_call_names_its_own_arguments_and_leaves_other_options_as_they_are_typed() -> None:
    @public
    def call(labels: object = None) -> None:
        raise UsageError(
            "--labels; --max-drop; --exportLayerInfo", fix="`qdqtool lint --rules`", where="--labels"
        )

    with pytest.raises(UsageError) as caught:
        call()
    assert (caught.value.what, caught.value.fix, caught.value.where) == (
        "labels=; --max-drop; --exportLayerInfo",
        "`qdqtool lint --rules`",
        "labels=",
    )


def test_the_value_of_an_option_joins_the_argument_and_a_word_of_the_sentence_does_not() -> None:
    @public
    def call(to_float: object = None, labels: object = None) -> None:
        raise UsageError("the nodes of --float in this model", fix="--float NODE, --labels and more")

    with pytest.raises(UsageError) as caught:
        call()
    assert (caught.value.what, caught.value.fix) == (
        "the nodes of to_float= in this model",
        "to_float=NODE, labels= and more",
    )


def test_what_a_conversion_notes_is_told_by_its_result() -> None:
    with pytest.raises(UsageError, match=r"insert\.keep_nodes: no node of the model matches 'nothing/\*'"):
        qdqtool.convert(MODEL, keep=["nothing/*"])
    found = qdqtool.convert(MODEL, keep=["nothing/*"], settings={"optional": ["nothing/*"]})
    assert "no node matches 'nothing/*'" in found.notes


def test_commands_in_errors_are_the_calls_of_the_same_name() -> None:
    with pytest.raises(qdqtool.QdqError, match=r"`qdqtool\.run`"):
        qdqtool.fix(MODEL)


@pytest.mark.parametrize("count", [3, np.int64(3)], ids=["int", "NumPy"])
def test_a_number_may_come_from_numpy(count: object) -> None:
    assert count_of(count, "trials") == number_of(count, "trials") == 3


@pytest.mark.parametrize("sm", ["86", "sm86", "SM_86", 86, 8.6, ["86"], "86,89", [86, "sm89"]], ids=str)
def test_architectures_are_taken_as_people_write_them(sm: Any) -> None:
    assert architectures_of(sm)[0] == "86"
    assert qdqtool.lint(MODEL, sm=sm).findings == ()


def test_a_word_is_not_a_list_of_its_letters(reference: Quantized) -> None:
    whole = qdqtool.sensitivity(reference, IMAGES[:4], top=1, groups="*", causes=False)
    assert any(len(node.members) > 1 for node in whole.nodes)


def test_random_samples_of_a_model_with_two_free_dimensions_have_the_shapes_of_the_engine() -> None:
    found = onnx.load(MODEL)
    found.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    found.graph.node.insert(
        0,
        onnx.helper.make_node(
            "Resize", ["image", "", "", "size"], ["resized"], name="to_eight", mode="nearest"
        ),
    )
    found.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 1, 8, 8]), "size"))
    for node in found.graph.node[1:]:
        node.input[:] = ["resized" if name == "image" else name for name in node.input]
    quantized = qdqtool.quantize(found, "random:2", settings={"calibrate.method": "max"})
    assert quantized.calibration.samples == 2
    assert not quantized.calibration.meaningful
    assert qdqtool.compare(found, quantized, "random:2").samples == 2


@pytest.mark.slow
def test_a_model_with_qdq_runs_against_the_float_model_that_is_named(reference: Quantized) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    report = qdqtool.run(reference, IMAGES, eval_samples=EVALUATION, labels=LABELS, reference=MODEL)
    assert report.comparison is not None
    assert any("without its Q/DQ" in note for note in report.comparison.notes)
    assert [entry.metric for entry in report.comparison.task] == ["top1", "top5"]
    alone = qdqtool.run(reference, IMAGES, eval_samples=EVALUATION, labels=LABELS)
    assert alone.comparison is not None
    assert alone.comparison.notes == ()


def test_a_model_in_memory_is_named_as_it_is_in_errors() -> None:
    broken = onnx.load(MODEL)
    broken.graph.node[0].input[0] = "nothing"
    with pytest.raises(QdqError, match="ModelProto 'main_graph'"):
        qdqtool.place(broken)


def test_the_model_itself_is_never_written_over(tmp_path: Path) -> None:
    path = models.save(onnx.load(MODEL), tmp_path)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="overwrite the original"):
        qdqtool.quantize(path, IMAGES, path)
    assert path.read_bytes() == before


def test_nothing_is_written_unless_a_path_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", None)
    quantized = qdqtool.quantize(MODEL, IMAGES)
    qdqtool.convert(quantized, samples=IMAGES)
    qdqtool.repair(quantized)
    qdqtool.sensitivity(quantized, IMAGES[:4], top=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("is_terminal", "progress"), [(True, None), (False, None), (True, False)])
def test_bars_are_drawn_by_default_where_somebody_can_see_them(
    is_terminal: bool, progress: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: is_terminal)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    with showing(progress) as shown:
        shown.step("calibrate")(1, 2)
    assert ("calibrate" in screen.getvalue()) == (is_terminal and progress is None)


def test_progress_is_told_and_can_cancel() -> None:
    seen: list[tuple[str, int, int | None]] = []
    qdqtool.quantize(MODEL, IMAGES, progress=lambda *step: seen.append(step))
    assert ("calibrate", 24, 24) in seen
    with pytest.raises(Interrupted, match="cancelled"):
        qdqtool.quantize(MODEL, IMAGES, progress=lambda *_: False)


def test_calls_from_many_threads_give_what_one_gives(reference: Quantized) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: qdqtool.quantize(onnx.load(MODEL), IMAGES), range(8)))
    assert all(each.ranges == reference.ranges for each in found)


@pytest.mark.slow
def test_a_run_folder_can_be_audited(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    report = qdqtool.run(MODEL, IMAGES, tmp_path / "run")
    assert qdqtool.audit(tmp_path / "run").verdicts == report.verdicts
    fixed = qdqtool.fix(tmp_path / "run", IMAGES, budget=1)
    assert fixed.report.before.int8 == report.summary.nodes_int8
    assert fixed.report.after.kernels <= fixed.report.before.kernels


def test_a_setting_in_a_fix_is_written_as_the_argument_that_takes_it() -> None:
    with pytest.raises(UsageError) as error:
        qdqtool.place(MODEL, recipe="conv-fp8")
    written = re.search(r"settings=(\[.*?\])\)", str(error.value.fix))
    assert written is not None
    settings = ast.literal_eval(written[1])
    assert qdqtool.place(MODEL, recipe="conv-fp8", settings=settings).quantized


def test_readers_of_onnxruntime_give_the_ranges_of_their_samples() -> None:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rows = iter(IMAGES)

        def get_next(self) -> dict[str, Any] | None:
            row = next(self.rows, None)
            return None if row is None else {"image": row[np.newaxis]}

    assert qdqtool.calibrate(MODEL, Reader()).ranges == qdqtool.calibrate(MODEL, IMAGES).ranges


def test_the_data_loader_of_polygraphy_is_told_the_inputs_as_its_runners_tell_them() -> None:
    comparator = pytest.importorskip("polygraphy.comparator", reason="Polygraphy is not installed")
    loader = comparator.DataLoader(iterations=4)
    found = qdqtool.calibrate(MODEL, loader)
    assert found.samples == 4
    assert not found.meaningful, "random numbers are no samples"
    assert [loader[number]["image"].shape for number in range(4)] == [(1, 1, 8, 8)] * 4
