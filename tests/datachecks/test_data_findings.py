"""What a user brings is judged: too few samples, the same samples twice, wrong preparation, wrong labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import qdqtool
from qdqtool.calibration.samples import open_samples, sample_objects
from qdqtool.calibration.samples.opening import SamplePart, Samples
from qdqtool.core.advice import settings_in
from qdqtool.core.comparison import Comparison, Measure, OutputComparison, TaskAccuracy
from qdqtool.core.protocols import Feeds
from qdqtool.core.recipe import Preprocess, Recipe
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.datachecks import check_data
from qdqtool.datachecks.evidence import (
    CONVERGED,
    DataEvidence,
    FloatCure,
    InputStatistics,
    Mirrored,
    NarrowLoss,
    Predictions,
    SampleSet,
    Spread,
    Variant,
)
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline import recipes
from qdqtool.pipeline.datacheck import (
    SCORED,
    SPLIT,
    DataMaterial,
    gather,
    sample_set,
    spread,
)
from qdqtool.pipeline.preparation_trials import better_variant, predictions
from tests.shared import shared

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"
MODEL = DIGITS / "digits.onnx"
CALIBRATION, EVALUATION = str(DIGITS / "calibration.npz"), str(DIGITS / "evaluation.npz")
LABELS = np.load(DIGITS / "labels.npy")


def _set(count: int = 8, **more: Any) -> SampleSet:
    names = tuple(f"s{number}" for number in range(count))
    fields = {"digests": names, "names": names, "constant": (), "inputs": ()} | more
    return SampleSet(count=count, **fields)


def _evidence(**more: Any) -> DataEvidence:
    fields: dict[str, Any] = {
        "calibration": _set(),
        "evaluation": _set(digests=tuple(f"other {n}" for n in range(8))),
        "comparison": _comparison(sqnr=30.0),
    }
    return DataEvidence(**(fields | more))


def _colours(*means: float, tilt: float = 0.0, deviations: tuple[float, ...] = (1.0, 1.0, 1.0)) -> SampleSet:
    found = InputStatistics(name="x", low=0, high=255, means=means, deviations=deviations, tilt=tilt)
    return _set(inputs=(found,))


def test_colours_of_sets_sorted_by_class_are_not_taken_for_another_order() -> None:
    """Means of two parts of CIFAR-10, of all classes and of the first two; then of the same part with BGR."""
    sorted_by_class = _evidence(
        calibration=_colours(128, 126, 120, tilt=5, deviations=(60.0,) * 3),
        evaluation=_colours(126, 129, 133, tilt=-5, deviations=(60.0,) * 3),
    )
    assert "DAT103" not in {found.code for found in check_data(sorted_by_class)}
    turned = _evidence(
        calibration=_colours(0.28, 0.16, 0.07, tilt=5), evaluation=_colours(0.04, 0.15, 0.23, tilt=-5)
    )
    assert "DAT103" in {found.code for found in check_data(turned)}


def test_a_colour_that_never_moves_is_found() -> None:
    lost = _evidence(calibration=_colours(0.1, 0.0, 0.1, deviations=(1.0, 0.0, 1.0)))
    (found,) = (each for each in check_data(lost) if each.code == "DAT109")
    assert found.reason == "channel 1 of 'x' is 0 everywhere in all calibration samples"
    blank = _evidence(calibration=_colours(0.0, 0.0, 0.0, deviations=(0.0, 0.0, 0.0)))
    assert "DAT109" not in {each.code for each in check_data(blank)}


def _comparison(*, sqnr: float | None = None, task: TaskAccuracy | None = None) -> Comparison:
    measures = () if sqnr is None else (Measure(metric="sqnr_db", value=sqnr, unit="dB"),)
    return Comparison(
        reference="a",
        candidate="b",
        samples=8,
        meaningful=True,
        outputs=(OutputComparison(output="y", measures=measures),),
        task=() if task is None else (task,),
    )


def _task(drop: float, high: float) -> Comparison:
    return _comparison(
        task=TaskAccuracy(
            metric="top1", unit="%", reference=90.0, candidate=90.0 - drop, samples=300, low=-drop, high=high
        )
    )


def _codes(evidence: DataEvidence, **more: Any) -> dict[str, str]:
    return {found.code: found.severity.value for found in check_data(evidence, **more)}


def test_one_wrong_preparation_is_one_finding() -> None:
    variant = Variant(name="BGR", predictions=RIGHT, asis=HALF_RIGHT)
    mirrored = Mirrored(samples=40, asis=0.1, name="BGR", best=0.9)
    found = check_data(_evidence(predictions=HALF_RIGHT, variant=variant, mirrored=mirrored))
    assert [finding.code for finding in found] == ["DAT104"]


def test_sound_data_has_no_findings() -> None:
    spread = Spread(samples=64, typical=0.03, worst=0.2, tensor="x")
    assert _codes(_evidence(spread=spread)) == {}


GUESSES = Predictions(predicted=tuple(range(10)) * 10, truth=(0,) * 100, classes=10)
SEEN = tuple(np.random.default_rng(0).integers(0, 10, 100).tolist())
RIGHT = Predictions(predicted=SEEN, truth=SEEN, classes=10)
HALF_RIGHT = Predictions(predicted=SEEN[:50] + (0,) * 50, truth=SEEN, classes=10)
MORE_RIGHT = Predictions(predicted=SEEN[:60] + (0,) * 40, truth=SEEN, classes=10)
"""Right on significantly more samples than `HALF_RIGHT`, and still wrong on most of those that it is wrong on."""
NEARLY_RIGHT = Predictions(predicted=tuple((n + 1) % 10 for n in SEEN[:4]) + SEEN[4:], truth=SEEN, classes=10)
OF_ONE_CLASS = Predictions(predicted=(3,) * 12 + SEEN[12:], truth=(3,) * 100, classes=10)
"""Samples that are all of one class, and a model that finds it now and then."""
ALWAYS_THE_SAME = Variant(
    name="0..1",
    predictions=Predictions(predicted=(3,) * 100, truth=(3,) * 100, classes=10),
    asis=OF_ONE_CLASS,
)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"calibration": _set(1)}, {"DAT101": "error"}),
        ({"spread": Spread(samples=8, typical=0.2, worst=0.4, tensor="x")}, {"DAT101": "warning"}),
        ({"evaluation": None}, {"DAT102": "warning"}),
        ({"evaluation": _set()}, {"DAT102": "warning"}),
        (
            {"evaluation": _set(40, digests=("s0", *(f"other {n}" for n in range(39))))},
            {"DAT102": "info"},
        ),
        ({"predictions": GUESSES}, {"DAT105": "error"}),
        ({"predictions": RIGHT}, {}),
        (
            {"predictions": Predictions(predicted=SEEN, truth=tuple(n + 1 for n in SEEN), classes=11)},
            {"DAT105": "error", "DAT106": "error"},
        ),
        (
            {"predictions": Predictions(predicted=SEEN, truth=tuple(9 - n for n in SEEN), classes=10)},
            {"DAT105": "error", "DAT106": "error"},
        ),
        (
            {
                "predictions": HALF_RIGHT,
                "variant": Variant(name="BGR", predictions=RIGHT, asis=HALF_RIGHT),
            },
            {"DAT104": "error"},
        ),
        (
            {
                "predictions": NEARLY_RIGHT,
                "variant": Variant(name="BGR", predictions=RIGHT, asis=NEARLY_RIGHT),
            },
            {"DAT104": "info"},
        ),
        (
            {
                "predictions": HALF_RIGHT,
                "variant": Variant(name="0..1", predictions=MORE_RIGHT, asis=HALF_RIGHT),
            },
            {"DAT104": "warning"},
        ),
        ({"predictions": OF_ONE_CLASS, "variant": ALWAYS_THE_SAME}, {}),
        ({"comparison": _comparison(sqnr=12.0)}, {"DAT107": "warning"}),
        ({"comparison": _comparison(sqnr=5.0)}, {"DAT107": "error"}),
        ({"comparison": _task(0.7, -0.1)}, {}),
        ({"comparison": _task(3.0, 0.5)}, {}),
        ({"comparison": _task(3.0, -0.5)}, {"DAT107": "warning"}),
        ({"comparison": _task(30.0, -20.0)}, {"DAT107": "error"}),
        ({"recipe": "conv-int8", "fitting": ("unet-int8", "why")}, {"DAT108": "warning"}),
        ({"recipe": "unet-int8", "fitting": ("unet-int8", "why")}, {}),
        ({"recipe": "audio-int8", "fitting": ("conv-depthwise-int8", "why")}, {}),
        ({"recipe": "audio-int8", "fitting": ("transformer-int8", "why")}, {"DAT108": "warning"}),
        ({"calibration": _set(8, digests=("a",) * 8)}, {"DAT109": "warning"}),
        ({"calibration": _set(8, constant=("s1", "s2"))}, {"DAT109": "warning"}),
        ({"calibration": _set(8, skipped=2)}, {"DAT110": "warning"}),
        ({"meaningful": False}, {"DAT111": "warning"}),
        (
            {"narrow": NarrowLoss(types="fp16", wide_db=46.3, narrow_db=20.5, samples=8)},
            {"DAT112": "warning"},
        ),
    ],
)
def test_each_doubt_is_found_and_no_other(more: dict[str, Any], expected: dict[str, str]) -> None:
    assert _codes(_evidence(**more)) == expected


def test_nodes_that_stay_wide_are_named_as_the_recipe_reads_them() -> None:
    nodes = ("a[1]", "b, c", "12")
    narrow = NarrowLoss(types="bf16", wide_db=46.3, narrow_db=20.5, samples=8, nodes=nodes, kept_db=45.0)
    (finding,) = check_data(_evidence(narrow=narrow, wide=("stem/*",)))
    kept = recipes.load(None, list(settings_in(finding.fix))[:1]).insert.keep_nodes
    assert kept == ("stem/*", "a[[]1]", "b, c", "12")


def test_nodes_that_stay_float_are_added_to_those_of_the_recipe() -> None:
    cure = FloatCure(nodes=("a[1]",), before_db=5.0, after_db=20.0, samples=8)
    evidence = _evidence(comparison=_comparison(sqnr=5.0), cure=cure, excluded=("stem/*",))
    (fix,) = (finding.fix for finding in check_data(evidence) if "20.0 dB" in finding.fix)
    excluded = recipes.load(None, list(settings_in(fix))[:1]).place.exclude
    assert excluded == ("stem/*", "a[[]1]")


def test_what_a_type_costs_names_a_fix_only_where_it_helps() -> None:
    def fix(kept_db: float | None) -> str:
        narrow = NarrowLoss(
            types="bf16", wide_db=46.3, narrow_db=20.5, samples=8, nodes=("a", "b"), kept_db=kept_db
        )
        (finding,) = check_data(_evidence(narrow=narrow))
        assert "46.3 dB with the float part in FP32, 20.5 dB in BF16" in finding.reason
        return finding.fix

    assert fix(45.0).startswith("keep these nodes FP32: --set 'insert.keep_nodes=[a, b]' (20.5 -> 45.0 dB")
    for useless in (20.9, None):
        assert fix(useless) == "keep the float part FP32: --set insert.types=fp32"


def test_the_float_model_is_asked_about_samples_from_all_over_a_set_sorted_by_class(
    tmp_path: Path,
) -> None:
    order = np.argsort(LABELS, kind="stable")
    pixels = np.load(EVALUATION)["image"][order]
    infos = load(MODEL).view.inputs
    labels = tmp_path / "labels.npy"
    np.save(labels, LABELS[order])
    evaluation = open_samples(sample_objects(pixels), infos, labels=str(labels))
    calibration = open_samples(CALIBRATION, infos)
    material = DataMaterial(
        calibration=calibration, evaluation=evaluation, comparison=_comparison(sqnr=30.0), recipe=Recipe()
    )
    model = load(MODEL)
    found = gather((model, model), None, material).predictions
    assert found is not None
    assert set(found.truth) == set(range(10))
    assert 200 <= len(found.truth) <= SCORED


def test_ranges_that_some_samples_leave_open_are_asked_of_all(tmp_path: Path) -> None:
    loud = np.exp(np.random.default_rng(0).normal(size=(1600, 1, 1, 1)) / 2)
    pixels = np.random.default_rng(1).random((1600, 1, 8, 8))
    np.savez(tmp_path / "loud.npz", image=(loud * pixels).astype(np.float32))
    model = load(MODEL)
    placement = qdqtool.place(MODEL)
    few, many = (
        spread(model, placement, open_samples(f"{tmp_path / 'loud.npz'}[:{count}]", model.view.inputs))
        for count in (SPLIT, 1600)
    )
    assert few is not None
    assert many is not None
    assert few.typical > CONVERGED > many.typical
    assert (few.samples, many.samples) == (SPLIT, 1600)


def test_ignored_findings_are_left_out_by_code_and_by_name() -> None:
    evidence = _evidence(evaluation=None, calibration=_set(1))
    assert _codes(evidence, ignore=("DAT101",)) == {"DAT102": "warning"}
    assert _codes(evidence, ignore=("few_samples", "shared_samples")) == {}


def _statistics(array: Any) -> SampleSet:
    info = TensorInfo(name="x", shape=("n", *array.shape[1:]), dtype=_float32())
    return sample_set(open_samples(sample_objects(array), (info,)))


def test_a_size_beside_a_picture_is_no_blank_sample() -> None:
    random = np.random.default_rng(0)
    infos = tuple(
        TensorInfo(name=name, shape=shape, dtype=_float32())
        for name, shape in (("image", (1, 3, 16, 16)), ("size", (1, 2)))
    )
    given = [
        {
            "image": random.random((1, 3, 16, 16), np.float32) * (number > 0),
            "size": np.full((1, 2), 320.0, np.float32),
        }
        for number in range(4)
    ]
    seen = sample_set(open_samples(sample_objects(given), infos))
    assert len(seen.constant) == 1


def _float32() -> Any:
    from qdqtool.core.tensors import DType

    return DType.FLOAT32


def _photos(seed: int) -> Any:
    """Pictures with more red than blue, as photographs have."""
    random = np.random.default_rng(seed)
    light = random.uniform(0.2, 0.8, (40, 1, 1, 1))
    return (
        light * np.array([1.0, 0.9, 0.7]).reshape(1, 3, 1, 1) + random.normal(0, 0.1, (40, 3, 8, 8))
    ).astype(np.float32)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x, ""),
        (lambda x: x * 255, "different sizes"),
        (lambda x: x - 5, "have different values"),
        (lambda x: x[:, ::-1], "opposite order"),
    ],
    ids=["the same", "0..255", "shifted", "BGR"],
)
def test_sets_that_are_prepared_differently_are_told(change: Any, words: str) -> None:
    evidence = _evidence(calibration=_statistics(_photos(0)), evaluation=_statistics(change(_photos(1))))
    reasons = [found.reason for found in check_data(evidence) if found.code == "DAT103"]
    assert bool(reasons) == bool(words)
    assert all(words in reason for reason in reasons)


def _run(samples: Any, **more: Any) -> Any:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    return qdqtool.run(MODEL, samples, **more)


PICTURE = TensorInfo(name="x", dtype=DType.FLOAT32, shape=("N", 3, 4, 4))
USUAL = {
    "0..255": Preprocess(),
    "0..1": Preprocess(scale=1 / 255),
    "-1..1": Preprocess(mean=(127.5,), std=(127.5,)),
    "ImageNet": Preprocess(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
}


class _TrainedOn:
    """A classifier that knows pictures only as they were prepared in its training."""

    description, inputs, outputs, at_once = "float model", (PICTURE,), ("y",), 1

    def __init__(self, training: Samples) -> None:
        self._known = [(sample.feeds["x"], sample.label) for sample in training]

    def run(self, feeds: Feeds) -> dict[str, Any]:
        scores = np.zeros((1, 16), np.float32)
        for picture, label in self._known:
            scores[0, label or 0] = np.allclose(picture, feeds["x"], rtol=1e-3, atol=1e-3)
        return {"y": scores}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8)).save(folder / f"{number}.png")
    rows = "".join(f"{number}.png\t{number + 1}\n" for number in range(12))
    (folder / "labels.tsv").write_text(f"file\tclass_id\n{rows}", "utf-8")
    return str(folder)


@pytest.mark.parametrize("trained", USUAL)
@pytest.mark.parametrize("given", USUAL)
@pytest.mark.parametrize("colours", [("rgb", "rgb"), ("bgr", "rgb"), ("rgb", "bgr")])
def test_the_settings_that_are_advised_prepare_pictures_as_in_training(
    given: str, trained: str, colours: tuple[str, str], pictures: str
) -> None:
    start, goal = (
        USUAL[name].model_copy(update={"colour": colour})
        for name, colour in zip((given, trained), colours, strict=True)
    )
    samples = open_samples(pictures, (PICTURE,), start)
    model = _TrainedOn(open_samples(pictures, (PICTURE,), goal))
    recipe = Recipe.model_validate({"name": "mine", "samples": {"preprocess": start}})
    scored = predictions(model, samples, "")
    assert scored is not None
    everything = SamplePart(samples, range(len(samples)))
    better = better_variant(model, (everything, everything), sample_set(samples), recipe, scored)
    if start == goal:
        assert better is None or better.predictions.hits <= scored.hits
        return
    assert better is not None
    assert better.predictions.hits == len(scored.truth) > scored.hits
    said = dict(setting.removeprefix("samples.preprocess.").split("=") for setting in better.settings)
    changed = Preprocess.model_validate(
        start.model_dump()
        | {field: json.loads(value) if field != "colour" else value for field, value in said.items()}
    )
    for advised, wanted in zip(
        open_samples(pictures, (PICTURE,), changed), open_samples(pictures, (PICTURE,), goal), strict=True
    ):
        np.testing.assert_allclose(advised.feeds["x"], wanted.feeds["x"], rtol=1e-4, atol=1e-4)


def test_arrays_that_are_taken_as_they_are_get_no_advice_about_pictures() -> None:
    arrays = np.random.default_rng(0).uniform(0, 255, (12, 3, 4, 4)).astype(np.float32)
    labels = np.arange(1, 13)
    samples = open_samples(sample_objects({"x": arrays, "label": labels}), (PICTURE,))
    model = _TrainedOn(open_samples(sample_objects({"x": arrays / 255, "label": labels}), (PICTURE,)))
    scored = predictions(model, samples, "")
    assert scored is not None
    everything = SamplePart(samples, range(len(samples)))
    recipe = Recipe(name="mine")
    better = better_variant(model, (everything, everything), sample_set(samples), recipe, scored)
    assert better is not None
    assert (better.name, better.settings) == ("values of 0..1", ())


@pytest.mark.rtx
@pytest.mark.parametrize(
    ("samples", "labels", "accurate", "codes"),
    [
        (CALIBRATION, LABELS, "yes", set()),
        (f"{CALIBRATION}[:1]", LABELS, "no", {"DAT101"}),
        (EVALUATION, LABELS, "unknown", {"DAT102"}),
        (CALIBRATION, np.roll(LABELS, 1), "no", {"DAT105"}),
        ("random:16", None, "unknown", {"DAT111"}),
    ],
    ids=["sound", "one sample", "the same samples", "labels of other samples", "random"],
)
@pytest.mark.slow
def test_runs_are_judged(samples: Any, labels: Any, accurate: str, codes: set[str], tmp_path: Path) -> None:
    report = _run(samples, out=tmp_path / "run", eval_samples=EVALUATION, labels=labels)
    found = {each.code for each in report.findings if each.code.startswith("DAT")}
    judged = report.summary.verdict
    assert judged.accurate.state == accurate, judged.accurate
    # a network of a few thousand pixels is starts of kernels: nobody knows without a GPU whether INT8 is faster
    assert (judged.asked.state, judged.worth.state) == ("yes", "unknown")
    assert "QDQ222" in judged.worth.evidence
    assert codes <= found
    written = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))["data"]
    assert written["summary"]["verdict"]["accurate"]["state"] == accurate
    assert (
        written["summary"]["verdict"]["answer"]
        == report.verdict
        == ("bad" if accurate == "no" else "doubtful")
    )
    assert {each["code"] for each in written["findings"] if each["code"].startswith("DAT")} == found


@pytest.mark.rtx
def test_the_first_line_is_the_verdict_and_fail_on_counts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    from qdqtool.cli.app import run as run_cli

    line = ["run", str(MODEL), "--samples", f"{CALIBRATION}[:40]", "--out", str(tmp_path / "run")]
    assert run_cli(line) == 0
    assert capsys.readouterr().out.startswith("Verdict: doubtful")
    assert run_cli([*line, "--fail-on", "warning"]) == 1
    assert run_cli([*line, "--fail-on", "error"]) == 0
    assert run_cli([*line, "--fail-on", "doubtful"]) == 1
    assert "the verdict is doubtful" in capsys.readouterr().err
    assert run_cli([*line, "--fail-on", "bad"]) == 0
    assert run_cli([*line, "--fail-on", "good"]) == 2


@pytest.mark.shared
@pytest.mark.rtx
@pytest.mark.slow
def test_calibration_on_raw_pixels_is_bad_and_on_the_same_scale_good() -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    model = shared("models/cifar10_resnet20/model.onnx")
    data = np.load(shared("models/data_cifar10/lossless242.npz"))
    pixels = np.load(shared("models/data_cifar10/calib500_jpeg.npz"))["x"][:100]
    mean, std = (np.array(each, np.float32) for each in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))

    def prepared(images: Any) -> Any:
        return ((images.astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2)

    raw = pixels.astype(np.float32).transpose(0, 3, 1, 2)
    verdicts = {}
    for name, samples, evaluated in (
        ("good", prepared(pixels), prepared(data["x"])),
        ("raw", raw, prepared(data["x"])),
        ("unnormalised", raw, data["x"].astype(np.float32).transpose(0, 3, 1, 2)),
    ):
        report = qdqtool.run(model, samples, eval_samples=evaluated, labels=data["y"])
        accurate = report.summary.verdict.accurate.state
        verdicts[name] = (accurate, {found.code for found in report.findings})
    assert verdicts["good"][0] == "yes"
    assert verdicts["raw"][0] == "no"
    assert "DAT103" in verdicts["raw"][1]
    assert verdicts["unnormalised"][0] == "no"
    assert "DAT104" in verdicts["unnormalised"][1]
