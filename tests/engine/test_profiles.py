"""Times of layers and of inferences."""

from __future__ import annotations

import json
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.engine import Engine, EngineLayer
from qdqtool.core.explore import Profile, ProfileRow
from qdqtool.engine.about import about, spans_of
from qdqtool.engine.profile_forms import read_profile, read_profile_text
from qdqtool.engine.view import join_times
from qdqtool.errors import InputFileError
from tests.shared import SHARED, shared

ROWS = [
    {"count": 4},
    {"name": "conv1", "timeMs": 8.0, "averageMs": 2.0, "medianMs": 1.9, "percentage": 80.0},
    {"name": "copy", "timeMs": 0, "averageMs": 0, "medianMs": 0, "percentage": 0},
]


def times(value: object) -> Profile:
    return read_profile_text(value if isinstance(value, str) else json.dumps(value), where="test")


def engine(*names: str) -> Engine:
    return Engine(layers=tuple(EngineLayer(name=name, kind="k") for name in names))


def profile(*names: str) -> Profile:
    return Profile(
        rows=tuple(ProfileRow(name=name, average_ms=1.0 + index) for index, name in enumerate(names))
    )


def test_a_file_without_times_is_refused_with_a_fix():
    with pytest.raises(InputFileError, match="no times of layers") as caught:
        times("[]")
    assert "--exportProfile" in caught.value.fix


def test_exported_rows_are_read_and_zero_means_elided():
    found = times(ROWS)
    assert (found.iterations, found.total_ms, len(found.rows)) == (4, 2.0, 2)
    assert [row.elided for row in found.rows] == [False, True]
    assert found.rows[0].median_ms == 1.9


def test_older_files_without_a_median_are_read():
    old = [ROWS[0], {key: value for key, value in ROWS[1].items() if key != "medianMs"}]
    assert times(old).rows[0].median_ms is None


def test_of_several_arrays_the_last_counts_and_that_is_said():
    found = times(f"{json.dumps(ROWS)}\n{json.dumps([{'count': 9}, ROWS[1]])}")
    assert (found.iterations, len(found.rows)) == (9, 1)
    assert "2 profiles" in found.notes[0]


def test_a_cut_file_gives_its_whole_rows():
    text = json.dumps(ROWS)
    assert len(times(text[: text.rindex("copy")]).rows) == 1


@pytest.mark.parametrize("value", ["NaN", "-1", "1e999", '"2"', "true", "null"])
def test_odd_numbers_are_unread_not_times(value: str):
    text = f'[{{"count": 1}}, {{"name": "a", "averageMs": {value}}}, {{"name": "b", "averageMs": 1}}]'
    found = times(text)
    assert ([row.name for row in found.rows], found.unread) == (["b"], 1)


def test_lists_of_times_by_name_are_averaged():
    found = times({"a": [1.0, 3.0], "b": [0.5, 0.5]})
    assert [(row.name, row.average_ms) for row in found.rows] == [("a", 2.0), ("b", 0.5)]
    assert found.iterations == 2


def test_printed_lines_are_averaged_over_their_repetitions():
    found = times(
        "Timing:   20.0us -> conv + relu\nTiming:    0.000us -> copy\nTiming:   40.0us -> conv + relu\n"
    )
    assert [(row.name, row.average_ms) for row in found.rows] == [("conv + relu", 0.03), ("copy", 0.0)]


@pytest.mark.parametrize(
    "lines",
    [
        (
            "[I]    Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer\n"
            "[I]      193.50       0.0105       0.0098      12.7   conv 1 + relu\n"
            "[I]     1520.11       0.0828       0.0790     100.0   Total\n"
        ),
        (
            "[I]          Layer   Time (ms)   Avg. Time (ms)   Median Time (ms)   Time %\n"
            "[I]  conv 1 + relu      193.50           0.0105             0.0098     12.7\n"
            "[I]          Total     1520.11           0.0828             0.0790    100.0\n"
        ),
        (
            "[I]          Layer   Time (ms)   Avg. Time (ms)   Time %\n"
            "[I]  conv 1 + relu      193.50           0.0105     12.7\n"
        ),
    ],
    ids=["name last", "name first", "without median"],
)
def test_tables_of_all_releases_are_read(lines: str):
    found = times(f"[I] === Profile (18362 iterations ) ===\n{lines}[I] done\n")
    assert (found.iterations, [row.name for row in found.rows]) == (18362, ["conv 1 + relu"])
    assert (found.rows[0].average_ms, found.rows[0].percent) == (0.0105, 12.7)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.integers(0, 300), st.integers(0, 40))
def test_damaged_profiles_raise_nothing_but_the_file_error(junk: str, at: int, drop: int):
    text = json.dumps(ROWS)
    at %= len(text)
    try:
        found = times(text[:at] + junk + text[at + drop :])
    except InputFileError:
        return
    assert found.rows


@pytest.mark.parametrize(
    ("layer", "row"),
    [
        ("conv", "conv"),
        ("PWN(Add_133)", "Add_133"),
        ("Conv_0 + PWN(Clip_3)", "Conv_0 + Clip_3"),
        ("PWN(PWN(Sigmoid_1), Mul_2)", "Sigmoid_1 + Mul_2"),
        ("conv [profile 1]", "conv"),
        ("(Unnamed Layer* 3) [Shuffle] + conv", "(Unnamed Layer* 3) [Shuffle] + conv"),
    ],
    ids=["same", "pointwise", "pointwise behind", "nested", "optimization profile", "brackets"],
)
def test_rows_find_their_layer_in_every_spelling(layer: str, row: str):
    assert join_times(engine(layer), profile(row)).matched == 1.0


def test_names_that_repeat_are_matched_in_order():
    found = join_times(engine("a", "b", "a"), profile("a", "a", "b"))
    assert [row.average_ms for row in found.rows] == [1.0, 3.0, 2.0]


def test_rows_without_a_layer_are_named():
    found = join_times(engine("a", "b"), profile("a", "b", "c"))
    assert [row.name for row in found.unmatched] == ["c"]
    assert "'c'" in found.notes[0]


def test_the_profile_of_another_engine_is_called_so_with_its_share():
    found = join_times(engine("a", "x", "y", "z"), profile("a", "b", "c", "d"))
    assert "another engine: only 25%" in found.notes[0]


def test_times_of_inferences_are_summed_up():
    latency, compute = spans_of([{"latencyMs": ms, "computeMs": ms / 2} for ms in (1.0, 2.0, 9.0)])
    assert (latency.name, latency.count, latency.low, latency.median, latency.high) == (
        "latency",
        3,
        1.0,
        2.0,
        9.0,
    )
    assert compute.mean == 2.0


def test_times_under_the_names_of_older_releases_are_summed_up():
    records = [
        {"startInMs": 1.0, "endInMs": 1.1, "inMs": 0.1, "computeMs": ms, "outMs": 0.2, "latencyMs": ms + 0.3, "endToEndMs": 2 * ms}
        for ms in (1.0, 3.0)
    ]  # fmt: skip
    found = {span.name: (span.count, span.low, span.high) for span in spans_of(records)}
    assert found == {
        "latency": (2, 1.3, 3.3),
        "compute": (2, 1.0, 3.0),
        "h2d": (2, 0.1, 0.1),
        "d2h": (2, 0.2, 0.2),
        "end to end": (2, 2.0, 6.0),
    }


@pytest.mark.parametrize(
    ("text", "form", "name", "words"),
    [
        ('[{"latencyMs": 1.5, "computeMs": 1}]', "times", "latency", "mean 1.5"),
        ('[{"name": "y", "dimensions": "1x2", "values": [3, -1]}]', "outputs", "y", "2 values, -1 to 3"),
        ('{"build_options": {"Precision": "FP32+INT8"}}', "options", "Precision", "FP32+INT8"),
        ('[{"Name": "A100", "ComputeCapability": [8, 0]}]', "device", "ComputeCapability", "[8, 0]"),
    ],
    ids=["times", "outputs", "options", "device"],
)
def test_other_files_say_what_they_hold(tmp_path, text: str, form: str, name: str, words: str):
    (tmp_path / "x.json").write_text(text)
    found = about(tmp_path / "x.json")
    assert found.form == form
    assert next(fact.value for fact in found.facts if fact.name == name).startswith(words)


@pytest.mark.parametrize("text", ["{}", "[1]", "[[[[", "", '[{"latencyMs": "x"}]', '{"a": 1}', "[" * 5000])
def test_files_of_no_known_form_are_refused(tmp_path, text: str):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputFileError, match="contains no times, profile, outputs, options or device"):
        about(tmp_path / "x.json")


@pytest.mark.shared
def test_the_seed_profile_gives_its_golden_totals():
    found = read_profile(shared("seeds/003_f31fb2f90cf874bd.txt"))
    assert (len(found.rows), found.iterations) == (113, 625)
    assert sum(row.total_ms for row in found.rows) == pytest.approx(3044.42825, abs=1e-4)
    assert found.total_ms == pytest.approx(4.871083, abs=1e-6)
    assert sum(row.percent for row in found.rows) == pytest.approx(100.00006, abs=1e-4)
    reformats = [row for row in found.rows if row.name.startswith("Reformatting CopyNode")]
    assert (len(reformats), sum(not row.elided for row in reformats)) == (26, 4)
    assert sum(row.total_ms for row in reformats) == pytest.approx(91.278, abs=1e-3)
    assert sum(row.total_ms for row in found.rows if row.name.endswith(" copy")) == pytest.approx(
        39.631, abs=1e-3
    )
    top, second, third = sorted(found.rows, key=lambda row: -row.percent)[:3]
    assert (top.name.count("||"), top.percent, top.total_ms) == (
        7,
        pytest.approx(33.1504),
        pytest.approx(1009.24),
    )
    assert (second.name, second.percent) == ("Conv_169 + Relu_170", pytest.approx(4.54701))
    assert third.percent == pytest.approx(3.314, abs=1e-3)


@pytest.mark.shared
def test_all_profiles_there_are_read_and_nothing_is_left_over(tmp_path):
    shared("corpus/profile")
    for path in sorted((SHARED / "corpus" / "profile").iterdir()):
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        if any(word in path.name for word in ("metadata", "timing")):
            (tmp_path / "x.json").write_bytes(content)
            assert about(tmp_path / "x.json").facts, path.name
        else:
            found = read_profile_text(content.decode("utf-8", "replace"), where=path.name)
            assert found.unread == 0, path.name


def test_times_of_whole_inferences_are_told_from_times_of_layers():
    with pytest.raises(InputFileError, match=r"whole inferences.*engine about"):
        read_profile_text('[{"latencyMs": 0.9, "computeMs": 0.9}]', where="times.json")
