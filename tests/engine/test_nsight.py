"""Exports of Nsight Systems give every layer the time of the kernels that its NVTX range launched."""

from __future__ import annotations

import gzip
import json
import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.engine import Engine, EngineLayer
from qdqtool.engine.profile_forms import read_profile, read_profile_text
from qdqtool.engine.view import join_times
from qdqtool.errors import InputFileError

THREAD = (7 << 24) + 3
Range = tuple[int, int, str]
Launch = tuple[int, int]


def export(
    path: Path,
    ranges: list[Range],
    launches: list[Launch],
    *,
    text_ids: bool = True,
    domain: str = "TensorRT",
) -> Path:
    """A database as `nsys export` writes it; a launch is its start and the nanoseconds of its kernel."""
    with closing(sqlite3.connect(path)) as made:
        made.executescript(
            "create table StringIds (id integer primary key, value text not null);"
            "create table NVTX_EVENTS (start int not null, end int, eventType int not null, text text, textId int, "
            "globalTid int, domainId int);"
            "create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, correlationId int, globalTid int);"
            "create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, correlationId int, globalPid int);"
        )
        made.execute("insert into NVTX_EVENTS values (0, null, 75, ?, null, ?, 2)", (domain, THREAD))
        made.execute(
            "insert into NVTX_EVENTS values (0, 10000, 59, 'of another library', null, ?, 5)", (THREAD,)
        )
        for number, (start, end, name) in enumerate(ranges):
            made.execute("insert into StringIds values (?, ?)", (number, name))
            text, key = (None, number) if text_ids else (name, None)
            made.execute(
                "insert into NVTX_EVENTS values (?, ?, 59, ?, ?, ?, 2)", (start, end, text, key, THREAD)
            )
        for number, (start, ns) in enumerate(launches):
            made.execute(
                "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?)",
                (start, start + 1, number, THREAD),
            )
            made.execute(
                "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?)",
                (start + 500, start + 500 + ns, number, 7 << 24),
            )
            # another process counts its calls from the same number
            made.execute(
                "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (1, 2, ?, ?)", (number, (8 << 24) + 1)
            )
        made.commit()
    return path


def export_lines(
    path: Path,
    ranges: list[Range],
    launches: list[Launch],
    *,
    text_ids: bool = True,
    domain: str = "TensorRT",
) -> Path:
    """The same events as `nsys export --type json` writes them: 64-bit numbers as text."""
    names = ["cudaLaunchKernel", *(name for _, _, name in ranges)]

    def nvtx(
        kind: int, start: int, end: int | None, name: str, number: int | None, of: int
    ) -> dict[str, Any]:
        event = {
            "Type": kind,
            "Timestamp": str(start),
            "GlobalTid": str(THREAD),
            "DomainId": str(of),
            "NsTime": True,
        }
        event |= {"Text": name} if number is None else {"TextId": number}
        return {"Type": kind, "NvtxEvent": event | ({} if end is None else {"EndTimestamp": str(end)})}

    def call(thread: int, start: int, number: int) -> dict[str, Any]:
        event = {
            "startNs": str(start),
            "endNs": str(start + 1),
            "correlationId": number,
            "globalTid": str(thread),
        }
        return {"Type": 48, "TraceProcessEvent": {**event, "name": "0", "eventClass": 0}}

    events: list[dict[str, Any]] = [
        {"data": names},
        nvtx(75, 0, None, domain, None, 2),
        nvtx(59, 0, 10000, "of another library", None, 5),
    ]
    for number, (start, end, name) in enumerate(ranges):
        events.append(nvtx(59, start, end, name, number + 1 if text_ids else None, 2))
    for number, (start, ns) in enumerate(launches):
        kernel = {"startNs": str(start + 500), "endNs": str(start + 500 + ns), "correlationId": number}
        events += [
            call(THREAD, start, number),
            {"Type": 79, "CudaEvent": {**kernel, "globalPid": str(7 << 24), "kernel": {"shortName": "3"}}},
            # a copy with the same correlation id is no kernel; another process counts from the same number
            {"Type": 80, "CudaEvent": {**kernel, "globalPid": str(7 << 24), "memcpy": {"sizebytes": "4"}}},
            call((8 << 24) + 1, 1, number),
        ]
    path.write_text("\n".join(map(json.dumps, events)) + "\n")
    return path


TWO_INFERENCES = [
    (100, 200, "ExecutionContext::enqueue"),
    (110, 120, "conv1 + relu1"),
    (130, 140, "pool"),
    (300, 400, "ExecutionContext::enqueue"),
    (310, 320, "conv1 + relu1"),
    (330, 340, "pool"),
]
KERNELS = [(112, 1_000_000), (115, 500_000), (133, 250_000), (312, 3_500_000), (335, 750_000)]


def test_kernels_of_a_cuda_graph_belong_to_no_layer(tmp_path: Path) -> None:
    """The graph is launched by the inference as a whole: its time is that of no layer, and the note says what helps."""
    ranges = [(100, 200, "ExecutionContext::enqueue"), (110, 120, "conv1")]
    found = read_profile(export(tmp_path / "a.sqlite", ranges, [(112, 1_000_000), (150, 3_000_000)]))
    assert [(row.name, row.total_ms, row.percent) for row in found.rows] == [("conv1", 1.0, 100.0)]
    assert any(
        "75% of the kernels' time" in note and "--cuda-graph-trace=node" in note for note in found.notes
    )
    with pytest.raises(InputFileError, match="no kernel inside an NVTX range") as refused:
        read_profile(export(tmp_path / "b.sqlite", ranges, [(150, 3_000_000)]))
    assert "--cuda-graph-trace=node" in refused.value.fix


@pytest.mark.parametrize("text_ids", [True, False], ids=["names by number", "names in place"])
def test_a_layer_has_the_kernels_of_its_range(tmp_path: Path, text_ids: bool) -> None:
    found = read_profile(export(tmp_path / "a.sqlite", TWO_INFERENCES, KERNELS, text_ids=text_ids))
    assert {row.name: (row.average_ms, row.median_ms, row.total_ms) for row in found.rows} == {
        "conv1 + relu1": (2.5, 2.5, 5.0),
        "pool": (0.5, 0.5, 1.0),
    }
    assert (found.iterations, found.form) == (2, "nsight")
    engine = Engine(layers=(EngineLayer(name="conv1 + relu1", kind="k"), EngineLayer(name="pool", kind="k")))
    joined = join_times(engine, found)
    assert joined.matched == 1.0
    assert [row.average_ms for row in joined.rows if row] == [2.5, 0.5]


@pytest.mark.parametrize("text_ids", [True, False], ids=["names by number", "names in place"])
def test_the_lines_of_json_give_the_times_of_the_database(tmp_path: Path, text_ids: bool) -> None:
    for number, (launches, domain) in enumerate(
        ((KERNELS, "TensorRT"), ([*KERNELS, (900, 6_000_000)], "TensorRT"), (KERNELS, "mine"))
    ):
        how = {"text_ids": text_ids, "domain": domain}
        database = read_profile(export(tmp_path / f"{number}.sqlite", TWO_INFERENCES, launches, **how))
        lines = export_lines(tmp_path / f"{number}.json", TWO_INFERENCES, launches, **how)
        assert read_profile(lines) == database
        as_list = tmp_path / f"{number}-list.json"
        as_list.write_text("[" + lines.read_text().strip().replace("\n", ",\n") + "]\n")
        assert read_profile(as_list) == database
        packed = tmp_path / f"{number}.json.gz"
        packed.write_bytes(gzip.compress(lines.read_bytes()))
        assert read_profile(packed) == database


def test_lines_that_are_cut_or_odd_are_passed_over(tmp_path: Path) -> None:
    path = export_lines(tmp_path / "a.json", TWO_INFERENCES, KERNELS)
    whole = read_profile(path)
    odd = [
        '{"Type": 59, "NvtxEvent": 3}',
        '{"Type": 59, "NvtxEvent": {"Timestamp": "-1", "EndTimestamp": 1e9, "GlobalTid": null}}',
        '{"Type": 79, "CudaEvent": {"kernel": {}, "startNs": "9" }}',
        '{"Type": 48, "TraceProcessEvent": {"correlationId": 99999999999999999999999999}}',
        '{"Type": 59, "NvtxEvent": {"Type": 59, "Timestamp": "11',
        "[" * 100_000,
    ]
    path.write_text(path.read_text() + "\n".join(odd))
    assert read_profile(path) == whole
    path.write_text('{"Type": 79, "CudaEvent": {"sync": {}}}\n')
    with pytest.raises(InputFileError, match="no kernel inside"):
        read_profile(path)


def test_kernels_outside_every_range_are_told(tmp_path: Path) -> None:
    found = read_profile(export(tmp_path / "a.sqlite", TWO_INFERENCES, [*KERNELS, (900, 6_000_000)]))
    assert found.total_ms == 3.0
    assert any("50% of the kernels' time" in note for note in found.notes)


def test_without_a_domain_of_tensorrt_all_ranges_count(tmp_path: Path) -> None:
    found = read_profile(export(tmp_path / "a.sqlite", TWO_INFERENCES, [(50, 1_000_000)], domain="mine"))
    assert [row.name for row in found.rows] == ["of another library"]


def test_the_engine_command_joins_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from qdqtool.cli.app import run

    layers = tmp_path / "layers.json"
    entry = {"LayerType": "Convolution", "Inputs": [], "Outputs": []}
    layers.write_text(json.dumps({"Layers": [{"Name": "conv1 + relu1", **entry}, {"Name": "pool", **entry}]}))
    times = export(tmp_path / "a.sqlite", TWO_INFERENCES, KERNELS)
    assert run(["engine", "layers", str(layers), "--profile", str(times), "--columns", "name,ms"]) == 0
    assert capsys.readouterr().out.splitlines() == ["name,ms", "conv1 + relu1,2.5", "pool,0.5"]


@settings(max_examples=80)
@given(st.randoms(use_true_random=False))
@pytest.mark.slow
def test_every_kernel_counts_once_in_its_innermost_range(dice: random.Random) -> None:
    import tempfile

    ranges: list[Range] = []

    def nested(start: int, end: int, depth: int) -> None:
        ranges.append((start, end, f"r{len(ranges)}"))
        at = start + 1
        while depth and at + 4 < end and dice.random() < 0.7:
            stop = dice.randint(at + 1, end - 1)
            nested(at, stop, depth - 1)
            at = stop + 1

    for number in range(dice.randint(1, 4)):
        nested(1000 * number + 10, 1000 * number + dice.randint(20, 900), 3)
    launches = [(dice.randint(0, 4000), dice.randint(1, 9) * 1000) for _ in range(dice.randint(1, 30))]
    expected: dict[str, int] = {}
    for start, ns in launches:
        around = [r for r in ranges if r[0] <= start <= r[1]]
        if around:
            inner = max(around, key=lambda r: (r[0], -r[1]))
            expected[inner[2]] = expected.get(inner[2], 0) + ns
    with tempfile.TemporaryDirectory() as folder:
        path = export(Path(folder) / "a.sqlite", ranges, launches)
        if not expected:
            with pytest.raises(InputFileError, match="no kernel inside"):
                read_profile(path)
            return
        profile = read_profile(path)
        assert read_profile(export_lines(Path(folder) / "a.json", ranges, launches)) == profile
        found = {row.name: round((row.total_ms or 0) * 1e6) for row in profile.rows}
    assert found == expected


JSON = [
    {"Range": "TensorRT:ExecutionContext::enqueue", "Total Proj Time (ns)": 9e6, "Range Instances": 2},
    {
        "Range": "TensorRT:conv1 + relu1",
        "Total Proj Time (ns)": 5e6,
        "Range Instances": 2,
        "Proj Med (ns)": 2.4e6,
    },
    {"Range": ":mine", "Total Proj Time (ns)": 1e6, "Range Instances": 1},
]


def test_the_reports_of_nsys_stats_are_read() -> None:
    found = read_profile_text(json.dumps(JSON), where="t")
    assert [(row.name, row.average_ms, row.median_ms) for row in found.rows] == [
        ("conv1 + relu1", 2.5, 2.4),
        ("mine", 1.0, None),
    ]
    csv = (
        "Processing [run.sqlite]\n\nNVTX Range,Style,NVTX Inst,Kern Inst,Total Time (us),Kernel Name\n"
        '"TensorRT:conv1 + relu1",PushPop,2,4,"3,000.0",a\n'
        '"TensorRT:conv1 + relu1",PushPop,2,2,2000.0,b\n'
    )
    ranges = "Time (%),Total Time (ns),Instances,Style,Range\n50.0,7000,1,PushPop,TensorRT:conv1 + relu1\n\n"
    kernels = "\nTime (%),Total Time (ns),Instances,Avg (ns),Med (ns),Name\n45.2,5000000,10,500000.0,4.0,sm80_xmma\n"
    for text in (csv, f"{csv}{kernels}", f"{ranges}{csv}{kernels}"):
        (row,) = read_profile_text(text, where="t").rows
        assert (row.name, row.average_ms) == ("conv1 + relu1", 2.5)


@pytest.mark.parametrize("name", ["run.nsys-rep", "run.qdrep"])
def test_a_report_that_only_nsight_reads_says_how_to_export_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x00")
    with pytest.raises(InputFileError) as caught:
        read_profile(tmp_path / name)
    assert f"nsys export --type sqlite {name}" in caught.value.fix


def test_a_database_of_something_else_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db")) as made:
        made.execute("create table t (x)")
        made.commit()
    with pytest.raises(InputFileError, match="CUPTI_ACTIVITY_KIND_KERNEL"):
        read_profile(tmp_path / "a.db")


def test_a_damaged_database_is_refused_or_read(tmp_path: Path) -> None:
    whole = export(tmp_path / "a.sqlite", TWO_INFERENCES, KERNELS).read_bytes()
    for seed in range(300):
        dice = random.Random(seed)
        content = bytearray(whole)
        for _ in range(dice.choice((1, 8, 64))):
            content[dice.randrange(16, len(content))] = dice.randrange(256)
        damaged = tmp_path / "d.sqlite"
        damaged.write_bytes(content[: dice.choice((len(content), dice.randrange(100, len(content))))])
        with suppress(InputFileError):
            read_profile(damaged)
