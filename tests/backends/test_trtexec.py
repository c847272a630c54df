"""trtexec of three releases: what is asked of it, and what is made of what it answers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtool.backends import BUILDERS
from qdqtool.backends.trtexec.program import ask
from qdqtool.core.protocols import BuildProgress, BuildRequest, BuildResult, InputProfile
from qdqtool.errors import BuildError, MissingPackage, QdqError, UsageError
from tests.backends import graphs, stand_in_trtexec
from tests.models import save

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script")


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the stand-in writes its arguments."""
    monkeypatch.setenv("STAND_IN_SAID", str(tmp_path / "said"))
    return tmp_path / "said"


def use(release: int, folder: Path, monkeypatch: pytest.MonkeyPatch, mode: str = "") -> None:
    monkeypatch.setenv("QDQTOOL_TRTEXEC", str(stand_in_trtexec.install(folder, release)))
    monkeypatch.setenv("STAND_IN", mode)


def build(model: onnx.ModelProto, folder: Path, **options: Any) -> BuildResult:
    request = BuildRequest(model=save(model, folder), folder=folder / "out", **options)
    result, _ = BUILDERS.load("trtexec").build(request)
    return result


def error_of(kind: type[QdqError], model: onnx.ModelProto, folder: Path, **options: Any) -> QdqError:
    with pytest.raises(kind) as caught:
        build(model, folder, **options)
    return caught.value


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("release", "spelled"), [(8601, "8.6.1"), (101600, "10.16.0"), (110100, "11.1.0")])
def test_the_release_is_read_from_the_banner(
    release: int, spelled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(release, tmp_path, monkeypatch)
    assert BUILDERS.load("trtexec").version() == spelled


def test_flags_are_those_the_help_explains_not_those_it_mentions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN", "")
    program = ask(stand_in_trtexec.install(tmp_path, 8601))
    assert program.flags == {*stand_in_trtexec.RELEASES[8601], "versionCompatible", "vc"}


@pytest.mark.parametrize(
    ("release", "typing"), [(8601, ["--int8"]), (101600, ["--stronglyTyped"]), (110100, [])]
)
def test_a_quantized_model_is_built_with_what_the_release_has(
    release: int, typing: list[str], tmp_path: Path, said: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(release, tmp_path, monkeypatch)
    result = build(graphs.quantized_conv(), tmp_path, flags=("--builderOptimizationLevel=5",))
    words = said.read_text().splitlines()
    assert [word for word in words if word in {"--int8", "--stronglyTyped", "--fp16"}] == typing
    assert {"--verbose", "--skipInference", "--profilingVerbosity=detailed"} <= set(words)
    assert "--builderOptimizationLevel=5" in words
    assert files_in(tmp_path / "out") == ["build.log", "engine.plan", "layers.txt"]
    assert (result.builder, result.targets) == ("trtexec", ("sm87",))
    assert "a warning on standard error" in result.warnings


def test_shapes_are_spelled_as_trtexec_wants_them(
    tmp_path: Path, said: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(8601, tmp_path, monkeypatch)
    profile = InputProfile(name="x", low=(1, 3, 8, 8), opt=(4, 3, 8, 8), high=(8, 3, 8, 8))
    value = InputProfile(name="n", low=(1,), opt=(2,), high=(3,), is_value=True)
    build(graphs.conv_relu("N"), tmp_path, profiles=(profile, value))
    words = said.read_text().splitlines()
    assert not any("n:" in word for word in words)
    assert {"--minShapes=x:1x3x8x8", "--optShapes=x:4x3x8x8", "--maxShapes=x:8x3x8x8"} <= set(words)


def test_the_log_holds_both_streams_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(8601, tmp_path, monkeypatch)
    build(graphs.conv_relu(), tmp_path)
    lines = (tmp_path / "out/build.log").read_text("utf-8").splitlines()
    assert lines[0].startswith("&&&& RUNNING TensorRT.trtexec [TensorRT v8601]")
    middle = next(index for index, line in enumerate(lines) if "on standard error" in line)
    assert "dead-layer removal" in lines[middle - 1]
    assert "Computing costs" in lines[middle + 1]


def test_progress_counts_the_layers_that_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(8601, tmp_path, monkeypatch)
    seen: list[BuildProgress] = []
    request = BuildRequest(model=save(graphs.conv_relu(), tmp_path), folder=tmp_path / "out")
    BUILDERS.load("trtexec").build(request, seen.append)
    assert [news.phase for news in seen] == ["parsing", "optimizing", *["timing kernels"] * 3, "finishing"]
    assert [(news.done, news.total) for news in seen[2:5]] == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("release", "flags", "words"),
    [
        pytest.param(110100, ("--fp16",), "strongly typed", id="--fp16 in 11"),
        pytest.param(110100, ("--heuristic",), "does not know --heuristic", id="heuristic in 11"),
        pytest.param(8601, ("--iteration=5",), "does not know --iteration", id="misspelled"),
        pytest.param(8601, ("--saveEngine=x",), "already set by the build", id="our own flag"),
        pytest.param(8601, ("fp16",), "is not a flag", id="no dashes"),
    ],
)
def test_flags_that_make_no_sense_are_refused_before_anything_runs(
    release: int,
    flags: tuple[str, ...],
    words: str,
    tmp_path: Path,
    said: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(release, tmp_path, monkeypatch)
    error = error_of(UsageError, graphs.conv_relu(), tmp_path, flags=flags)
    assert words in error.what
    assert not said.exists()


def test_a_misspelled_flag_is_answered_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(8601, tmp_path, monkeypatch)
    error = error_of(UsageError, graphs.conv_relu(), tmp_path, flags=("--iteration=5",))
    assert "--iterations instead of --iteration?" in error.fix


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        pytest.param("silent", "prints nothing", id="prints nothing"),
        pytest.param("other", "another program", id="another program"),
    ],
)
def test_what_is_no_trtexec_is_called_that(
    mode: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(8601, tmp_path, monkeypatch, mode)
    assert words in error_of(MissingPackage, graphs.conv_relu(), tmp_path).what


def test_a_file_that_cannot_be_run_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trtexec").write_text("no program")
    monkeypatch.setenv("QDQTOOL_TRTEXEC", str(tmp_path / "trtexec"))
    assert "cannot be run" in error_of(MissingPackage, graphs.conv_relu(), tmp_path).what


def test_a_missing_trtexec_is_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDQTOOL_TRTEXEC", str(tmp_path / "nowhere"))
    assert "does not exist" in error_of(MissingPackage, graphs.conv_relu(), tmp_path).what
    monkeypatch.delenv("QDQTOOL_TRTEXEC")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "PATH" in error_of(MissingPackage, graphs.conv_relu(), tmp_path).fix


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        pytest.param("crash", "SIGSEGV", id="crashes"),
        pytest.param("hang", "stopped after 2 s", id="hangs"),
        pytest.param("killed", "SIGKILL", id="is killed with half an engine written"),
        pytest.param("out-of-memory", "ran out of memory", id="runs out of memory"),
        pytest.param("disk-full", "the disk is full", id="finds the disk full"),
        pytest.param("no-engine", "no engine", id="writes no engine"),
        pytest.param("no-kernel", "node 'conv': no kernel", id="no implementation"),
        pytest.param("parse-error", "node 'quantize_x' (QuantizeLinear): the zero point", id="parse error"),
    ],
)
def test_a_failing_trtexec_leaves_its_log_and_one_clear_error(
    mode: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(8601, tmp_path, monkeypatch, mode)
    error = error_of(BuildError, graphs.quantized_conv(), tmp_path, timeout_s=2.0)
    assert words in error.what
    assert error.fix
    assert files_in(tmp_path / "out") == ["build.log"]


def test_a_build_comes_from_the_cache_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(8601, tmp_path, monkeypatch)
    first = build(graphs.conv_relu(), tmp_path, cache=tmp_path / "cache")
    monkeypatch.setenv("STAND_IN", "no-engine")
    assert build(graphs.conv_relu(), tmp_path, cache=tmp_path / "cache") == first


def test_a_log_without_line_ends_is_kept_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(8601, tmp_path, monkeypatch, "flood")
    build(graphs.conv_relu(), tmp_path)
    assert (tmp_path / "out/build.log").stat().st_size > 3 << 20


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize("ending", ["Ctrl-C", "time is up"])
@pytest.mark.slow
def test_trtexec_and_its_children_end_with_us(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_CHILD", str(tmp_path / "child"))
    use(8601, tmp_path, monkeypatch)
    build(graphs.conv_relu(), tmp_path)
    before = files_in(tmp_path / "out")
    monkeypatch.setenv("STAND_IN", "family")

    def cancel(_: BuildProgress) -> None:
        deadline = time.monotonic() + 120
        while not (tmp_path / "child").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        raise KeyboardInterrupt

    request = BuildRequest(
        model=save(graphs.conv_relu(), tmp_path),
        folder=tmp_path / "out",
        timeout_s=600.0 if ending == "Ctrl-C" else 5.0,
    )
    with pytest.raises((KeyboardInterrupt, BuildError)):
        BUILDERS.load("trtexec").build(request, cancel if ending == "Ctrl-C" else None)
    if not (tmp_path / "child").exists():
        pytest.skip("the machine was too busy to start the program in time")
    child = int((tmp_path / "child").read_text("utf-8"))
    deadline = time.monotonic() + 120
    while _is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_alive(child)
    if ending == "Ctrl-C":
        assert files_in(tmp_path / "out") == before
    else:
        assert files_in(tmp_path / "out") == ["build.log"]


FULL = """
import resource, sys
from qdqtool.cli.app import run
resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20))
sys.exit(run(sys.argv[1:]))
"""


def test_a_full_disk_is_one_clear_error_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(8601, tmp_path, monkeypatch)
    model = save(graphs.conv_relu(), tmp_path)
    command = ["build", str(model), "--out", str(tmp_path / "out"), "--builder", "trtexec"]
    ended = subprocess.run(
        [sys.executable, "-c", FULL, *command], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 5, ended.stderr
    assert "cannot be written: File too large" in ended.stderr.replace("\n", " ")
    assert files_in(tmp_path / "out") == []
