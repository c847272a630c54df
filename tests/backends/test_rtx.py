"""TensorRT for RTX builds, refuses and dies; whatever happens, one clear answer comes back."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest

from qdqtool.backends import BUILDERS
from qdqtool.cli.app import run
from qdqtool.core.protocols import BuildCost, BuildProgress, BuildRequest, BuildResult, InputProfile
from qdqtool.core.target import target_of
from qdqtool.engine.layer_info import read as read_layers
from qdqtool.errors import BuildError, InputFileError, QdqError, UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.trt.names import join
from tests import models
from tests.backends import graphs
from tests.models import save

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc"),
    pytest.mark.rtx,
    pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="needs TensorRT for RTX: qdqtool[rtx]"),
]


def build(model: onnx.ModelProto, folder: Path, **options: object) -> tuple[BuildResult, BuildCost]:
    folder.mkdir(exist_ok=True)
    return BUILDERS.load("rtx").build(
        BuildRequest(model=save(model, folder), folder=folder / "out", **options)
    )


def error_of(kind: type[QdqError], model: onnx.ModelProto, folder: Path, **options: object) -> QdqError:
    with pytest.raises(kind) as caught:
        build(model, folder, **options)
    return caught.value


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def builders() -> set[str]:
    """Process ids of our builders, finished ones that nobody collected included; other tests have other children."""
    tasks = Path(f"/proc/{os.getpid()}/task")
    ours = {word for task in tasks.iterdir() for word in (task / "children").read_text().split()}
    return {word for word in ours if is_builder(Path(f"/proc/{word}"))}


def is_builder(process: Path) -> bool:
    """Whether a child builds engines; one that has ended has no command line any more."""
    return b"native.worker" in (line := (process / "cmdline").read_bytes()) or not line


def runs(process: Path) -> bool:
    """Whether a process is alive; one that ended and waits to be collected is not."""
    try:
        return "State:\tZ" not in (process / "status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_int8_conv_is_built_and_its_layer_dump_says_so(tmp_path: Path) -> None:
    result, cost = build(graphs.quantized_conv(), tmp_path)
    out = tmp_path / "out"
    assert files_in(out) == ["build.log", "engine.plan", "layers.txt"]
    assert result.targets == ("sm86",)
    assert result.engine_bytes == (out / "engine.plan").stat().st_size > 0
    layers = (out / "layers.txt").read_text("utf-8")
    assert layers.startswith("Layers:\nName: ")
    assert "LayerType: correlation, Inputs: [ { Name: " in layers
    assert "Datatype: Int8" in layers
    assert layers in (out / "build.log").read_text("utf-8")
    assert not cost.cached
    assert cost.peak_mib is not None
    assert cost.peak_mib > 50


def test_the_log_keeps_every_line_with_its_severity(tmp_path: Path) -> None:
    build(graphs.conv_relu(), tmp_path)
    lines = (tmp_path / "out/build.log").read_text("utf-8").splitlines()
    assert "[V] Parsing node: conv [Conv]" in lines
    assert any(line.startswith("[I] ") for line in lines)
    assert "[V] Layers:" in lines
    assert any(line.startswith("Name: ") for line in lines)


def test_progress_rises_to_a_hundred(tmp_path: Path) -> None:
    seen: list[BuildProgress] = []
    request = BuildRequest(model=save(graphs.conv_relu(), tmp_path), folder=tmp_path / "out")
    BUILDERS.load("rtx").build(request, seen.append)
    percents = [news.done for news in seen]
    assert percents == sorted(percents)
    assert percents[-1] == 100
    assert {news.total for news in seen} == {100}
    assert len({news.phase for news in seen}) > 5


def test_the_same_model_gives_the_same_engine(tmp_path: Path) -> None:
    build(graphs.quantized_conv(), tmp_path / "a")
    build(graphs.quantized_conv(), tmp_path / "b")
    first, second = (tmp_path / name / "out/engine.plan" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    "targets", [("sm86", "sm120"), ("sm75", "sm86")], ids=["both have INT8", "one has none"]
)
def test_the_weakest_of_several_targets_decides_for_all(targets: tuple[str, ...], tmp_path: Path) -> None:
    result, _ = build(graphs.quantized_conv(), tmp_path, targets=targets)
    dump = (tmp_path / "out/layers.txt").read_text("utf-8")
    (conv,) = [line for line in dump.splitlines() if "LayerType: correlation" in line]
    assert ("Datatype: Int8" in conv) == ("sm75" not in targets)
    assert any("build for sm75 separately" in note for note in result.notes) == ("sm75" in targets)


def test_several_profiles_go_into_one_engine(tmp_path: Path) -> None:
    shapes = [(1, 3, 8, 8), (4, 3, 8, 8), (5, 3, 8, 8), (8, 3, 8, 8)]
    entries = tuple(
        InputProfile(name="x", low=low, opt=low, high=high, number=number)
        for number, (low, high) in enumerate(zip(shapes[::2], shapes[1::2], strict=True))
    )
    result, _ = build(graphs.conv_relu("N"), tmp_path, profiles=entries)
    dump = (tmp_path / "out/layers.txt").read_text("utf-8")
    assert result.profiles == entries
    assert "MaxShape: [4,3,8,8]" in dump
    assert "MaxShape: [8,3,8,8]" in dump


def test_forced_sparsity_builds_and_says_what_it_did(tmp_path: Path) -> None:
    result, _ = build(graphs.quantized_conv(), tmp_path, flags=("--sparsity=force",))
    assert any("computes nothing meaningful" in note for note in result.notes)
    assert files_in(tmp_path / "out") == ["build.log", "engine.plan", "layers.txt"]


def test_a_dynamic_batch_is_built_for_its_profile(tmp_path: Path) -> None:
    profile = InputProfile(name="x", low=(1, 3, 8, 8), opt=(4, 3, 8, 8), high=(8, 3, 8, 8))
    result, _ = build(graphs.conv_relu("N"), tmp_path, profiles=(profile,))
    assert result.profiles == (profile,)
    assert "MaxShape: [8,3,8,8]" in (tmp_path / "out/layers.txt").read_text("utf-8")


def test_values_are_given_for_the_inputs_that_shapes_are_computed_from(tmp_path: Path) -> None:
    """`rows` decides a shape, `shift` is data: the builder asks for the values of the first only."""
    text = """
        <ir_version: 10, opset_import: ["" : 17]>
        agraph (float[4, 6] x, int64[1] rows, int64[1] shift) => (float[R, C] y) {
            free = Constant <value: tensor = int64[1] {-1}> ()
            shape = Concat <axis: int = 0> (rows, free)
            folded = Reshape (x, shape)
            moved = Cast <to: int = 1> (shift)
            y = Add (folded, moved)
        }
    """
    model = onnx.parser.parse_model(text)
    assert "shape inputs" in str(error_of(BuildError, model, tmp_path / "without"))
    values = tuple(
        InputProfile(name=name, low=(1,), opt=(2,), high=(4,), is_value=True) for name in ("rows", "shift")
    )
    result, _ = build(model, tmp_path / "with", profiles=values)
    assert result.profiles == values[:1]


def test_several_targets_go_into_one_engine(tmp_path: Path) -> None:
    result, _ = build(graphs.quantized_conv(), tmp_path, targets=("86", "SM_89"))
    assert result.targets == ("sm86", "sm89")
    assert any("the layer dump" in warning for warning in (*result.warnings, *result.notes))


def test_sm75_comes_with_a_warning_that_int8_convolutions_become_half(tmp_path: Path) -> None:
    result, _ = build(graphs.quantized_conv(), tmp_path, targets=("sm75",))
    assert any("in FP16" in warning for warning in (*result.warnings, *result.notes))
    layers = (tmp_path / "out/layers.txt").read_text("utf-8").splitlines()
    convolutions = [line for line in layers if "LayerType: correlation" in line]
    assert convolutions
    assert not any("Datatype: Int8" in line for line in convolutions)


def test_flags_that_make_sense_without_a_gpu_are_honoured(tmp_path: Path) -> None:
    flags = ("--builderOptimizationLevel=2", "--memPoolSize=workspace:64MiB", "--maxAuxStreams=1")
    result, _ = build(graphs.quantized_conv(), tmp_path, flags=flags)
    assert f"flags: {' '.join(flags)}" in result.notes


def test_precision_flags_mean_nothing_where_types_stand_in_the_model(tmp_path: Path) -> None:
    error = error_of(UsageError, graphs.quantized_conv(), tmp_path, flags=("--int8",))
    assert "--int8: this release reads types from the model: INT8 as Q/DQ" in error.what


def test_an_unknown_target_is_answered_with_those_there_are(tmp_path: Path) -> None:
    error = error_of(UsageError, graphs.conv_relu(), tmp_path, targets=("sm86", "sm12"))
    assert "sm12" in error.what
    assert "sm75" in error.fix
    assert "sm86" in error.fix


@pytest.mark.parametrize("word", ["86", "8.6", "sm86", "SM86", "sm_86", " sm_86 "])
def test_a_target_may_be_spelled_as_people_do(word: str) -> None:
    assert target_of(word) == "sm86"


@pytest.mark.parametrize(
    ("make", "what", "fix"),
    [
        pytest.param(
            graphs.non_zero,
            "where_not_0.*NonZero.*does not know this operator",
            "cut",
            id="unsupported operator",
        ),
        pytest.param(graphs.int32_bias, "dequantize_bias.*INT32", "bias", id="INT32 bias behind DQ"),
        pytest.param(
            lambda: graphs.quantized_conv(zero_point=3),
            "quantize_x.*zero point",
            "zero point 0",
            id="zero point 3",
        ),
        pytest.param(
            lambda: graphs.quantized_conv(scale=-1.0), "quantize_x.*scale", "calibrate", id="negative scale"
        ),
        pytest.param(lambda: graphs.conv_relu("N"), "dynamic dimensions", "--min-shapes", id="no profile"),
        pytest.param(
            graphs.computed_scale, "SIGSEGV.*'made_scale'.*'quantize_x'", "constant", id="computed scale"
        ),
        pytest.param(graphs.zero_divisor, "SIGFPE.*'int_div'", "divisor", id="division by zero"),
    ],
)
def test_a_bad_model_is_refused_with_its_node_and_a_fix(
    make: Callable[[], onnx.ModelProto], what: str, fix: str, tmp_path: Path
) -> None:
    error = error_of(BuildError, make(), tmp_path)
    assert re.search(what, error.what), error.what
    assert fix in error.fix
    assert error.where == str(tmp_path / "model.onnx")
    assert "cudaError" not in str(error)
    assert files_in(tmp_path / "out") == ["build.log"]


@pytest.mark.slow
def test_a_chain_that_needs_more_stack_than_it_has_is_named(tmp_path: Path) -> None:
    error = error_of(BuildError, graphs.pointwise_chain(2000), tmp_path, stack_mib=1)
    assert "SIGSEGV: a chain of 2000 pointwise nodes, ending at 'the_end'" in error.what
    assert "--stack-mib 4" in error.fix


@pytest.mark.slow
def test_a_chain_of_3000_pointwise_nodes_is_built(tmp_path: Path) -> None:
    result, _ = build(graphs.pointwise_chain(3000), tmp_path)
    assert result.engine_bytes > 0


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"hello, this is no model\n", id="text"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 4096, id="zeros"),
        pytest.param(graphs.conv_relu().SerializeToString()[:300], id="cut short"),
    ],
)
def test_a_file_that_is_no_model_is_called_that(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InputFileError) as caught:
        BUILDERS.load("rtx").build(BuildRequest(model=path, folder=tmp_path / "out"))
    assert "ONNX" in caught.value.what


def test_weights_in_a_file_that_is_missing_are_called_missing(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save_model(graphs.conv_relu(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    request = BuildRequest(model=path, folder=tmp_path / "out")
    result, _ = BUILDERS.load("rtx").build(request)
    assert result.engine_bytes > 0
    (tmp_path / "w.bin").unlink()
    with pytest.raises(InputFileError, match="weight cannot be read"):
        BUILDERS.load("rtx").build(request)


def test_a_name_that_is_not_utf_8_is_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(graphs.non_zero().SerializeToString().replace(b"where_not_0", b"where\xff\xfe\xfdot_0"))
    with pytest.raises(InputFileError, match="damaged"):
        BUILDERS.load("rtx").build(BuildRequest(model=path, folder=tmp_path / "out"))


def test_a_missing_model_is_called_missing(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="does not exist"):
        BUILDERS.load("rtx").build(BuildRequest(model=tmp_path / "none.onnx", folder=tmp_path / "out"))


def test_a_build_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    start = time.monotonic()
    error = error_of(BuildError, graphs.pointwise_chain(6000), tmp_path, timeout_s=1.0)
    assert time.monotonic() - start < 10
    assert "stopped after 1 s" in error.what
    assert files_in(tmp_path / "out") == ["build.log"]
    assert not builders()


def test_a_cancelled_build_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    build(graphs.conv_relu(), tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def cancel(_: BuildProgress) -> None:
        raise KeyboardInterrupt

    request = BuildRequest(model=save(graphs.quantized_conv(), tmp_path), folder=tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        BUILDERS.load("rtx").build(request, cancel)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert not builders()


def heed_ctrl_c() -> None:
    """A process started in the background ignores SIGINT; a person's terminal does not start it so."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_the_command_and_its_builder(tmp_path: Path) -> None:
    model = save(graphs.pointwise_chain(6000), tmp_path)
    command = [sys.executable, "-m", "qdqtool", "build", str(model), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=heed_ctrl_c)  # noqa: PLW1509
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("out/.qdqtool-draft-*/build.log")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert files_in(tmp_path / "out") == []


def test_a_builder_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    model = save(graphs.pointwise_chain(6000), tmp_path)
    command = [sys.executable, "-m", "qdqtool", "build", str(model), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command)
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 120
    while not workers.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    worker = Path("/proc") / workers.read_text().split()[0]
    time.sleep(1.0)
    process.kill()
    process.wait()
    while runs(worker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(worker)


def test_a_failed_build_takes_the_engine_of_an_earlier_one_with_it(tmp_path: Path) -> None:
    build(graphs.conv_relu(), tmp_path)
    (tmp_path / "out/build.json").write_text("{}")
    error_of(BuildError, graphs.non_zero(), tmp_path)
    assert files_in(tmp_path / "out") == ["build.log"]


def test_the_second_build_of_the_same_model_comes_from_the_cache(tmp_path: Path) -> None:
    first, cost = build(graphs.quantized_conv(), tmp_path / "a", cache=tmp_path / "cache")
    again, cost_again = build(graphs.quantized_conv(), tmp_path / "b", cache=tmp_path / "cache")
    assert (cost.cached, cost_again.cached) == (False, True)
    assert cost_again.peak_mib is None
    assert again == first
    for name in files_in(tmp_path / "a/out"):
        assert (tmp_path / "a/out" / name).read_bytes() == (tmp_path / "b/out" / name).read_bytes()


def test_a_damaged_cache_entry_is_built_again(tmp_path: Path) -> None:
    build(graphs.conv_relu(), tmp_path / "a", cache=tmp_path / "cache")
    (plan,) = (tmp_path / "cache").glob("*/engine.plan")
    plan.write_bytes(plan.read_bytes()[:-1])
    _, cost = build(graphs.conv_relu(), tmp_path / "b", cache=tmp_path / "cache")
    assert not cost.cached
    _, cost = build(graphs.conv_relu(), tmp_path / "c", cache=tmp_path / "cache")
    assert cost.cached


def test_nodes_without_names_are_joined_with_the_kernels_of_the_file_itself(tmp_path: Path) -> None:
    proto = models.conv_chain()
    for node in proto.graph.node:
        node.name = ""
    path = save(proto, tmp_path)
    assert run(["build", str(path), "--out", str(tmp_path / "out")]) == 0
    view = load(path).view
    engine = read_layers(tmp_path / "out" / "layers.txt")
    matched = join(engine, frozenset(node.name for node in view.nodes if node.op == "Conv"))
    assert len(matched) == 2
    assert all(match.compute for match in matched.values())
