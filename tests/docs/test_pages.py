"""Every command of the documentation runs, page by page, in a folder with the files that the pages assume."""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from qdqtool.cli.app import application, run
from qdqtool.pipeline import recipes
from tests.docs.networks import (
    write_denoiser,
    write_detector,
    write_keywords,
    write_pictured,
    write_recommender,
    write_segmenter,
)
from tests.shared import ROOT

DOCS = ROOT / "docs"
DIGITS = ROOT / "recipes" / "examples" / "digits"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text("utf-8")
    return re.findall(rf"^ *```{language}\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A float model, samples, labels, and the same model as onnxruntime quantizes it."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DIGITS / "digits.onnx", "model.onnx")
    for name in ("calibration.npz", "evaluation.npz", "labels.npy"):
        shutil.copy(DIGITS / name, name)
    return tmp_path


def write_images() -> None:
    rng = np.random.default_rng(3)
    Path("images").mkdir()
    for number in range(12):
        pixels = rng.integers(0, 255, (48, 80, 3), np.uint8)
        Image.fromarray(pixels).save(f"images/{number:02}.png")


def materials_of(page: str) -> None:
    """The networks that a guide speaks of, small and with random weights, and their samples."""
    rng = np.random.default_rng(3)
    if page == "guides/cnn.md":
        write_segmenter("segmenter.onnx")
        np.savez("pictures.npz", picture=rng.normal(size=(32, 3, 32, 32)).astype(np.float32))
    if page == "guides/detector.md":
        write_detector("yolo.onnx")
        write_images()
    if page == "guides/lost-calibrators.md":
        Path("output").mkdir()
        write_pictured("output/rfdetr-nano.onnx", 384)
        write_pictured("lightly.onnx", 416, lightly_train_version="0.18.0")
        write_images()
    if page == "guides/audio.md":
        write_keywords("kws.onnx")
        np.savez("recordings.npz", spectrum=rng.normal(size=(64, 1, 49, 10)).astype(np.float32))
        np.save("words.npy", rng.integers(0, 12, 32))
        write_denoiser("denoiser.onnx")
        np.savez("frames.npz", sound=rng.normal(size=(16, 1, 256)).astype(np.float32))
    if page == "guides/recommender.md":
        write_recommender("dlrm.onnx")
        requests = {"features": rng.normal(size=(96, 13)).astype(np.float32)}
        np.savez("requests.npz", **requests, ids=rng.integers(0, 100, (96, 4)))


def quantized_by_onnxruntime() -> None:
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            random = np.random.default_rng(0)
            self.rest = [{"image": random.random((1, 1, 8, 8), dtype=np.float32)} for _ in range(4)]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.rest.pop() if self.rest else None

    quantization.quantize_static("model.onnx", "theirs.onnx", Reader())


README = "../README.md"
WITH_COMMANDS = [page for page in [README, *PAGES] if blocks(page, "sh")]
NEED_TORCH = {"guides/qat.md"}
"""Their Python is run beside the other tests of training: tests/qat/test_guide.py."""
WITH_PYTHON = [page for page in [README, *PAGES] if blocks(page, "python") and page not in NEED_TORCH]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="the pages build engines: qdqtool[rtx]")
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_command_of_a_page_runs(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(blocks(page, "sh"))
    materials_of(page)
    if "theirs.onnx" in text:
        quantized_by_onnxruntime()
    for command in text.splitlines():
        words = shlex.split(command)
        assert words[0] == "qdqtool", command
        assert run(words[1:]) == 0, (command, capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="the pages build engines: qdqtool[rtx]")
@pytest.mark.usefixtures("folder")
def test_the_gates_of_the_guide_on_ci_pass_and_fail_as_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    materials_of("guides/ci.md")
    (command,) = (block for block in blocks("guides/ci.md", "text") if "--fail-on doubtful" in block)
    assert run(shlex.split(command.replace("--builder trtexec", "--builder rtx"))[1:]) == 1
    assert "doubtful" in capsys.readouterr().err
    # the steps of the workflow read what the steps before them wrote
    steps = re.findall(r"^- run: qdqtool (.*)", "".join(blocks("guides/ci.md", "yaml")), re.MULTILINE)
    assert [step.split()[0] for step in steps] == ["run", "lint", "audit"]
    for number, step in enumerate(steps):
        if number == 2:
            capsys.readouterr()
            assert run(["audit", "runs/ci", "--json"]) == 0
            Path("baseline.json").write_text(capsys.readouterr().out, "utf-8")
        assert run(shlex.split(step)) == 0, (step, capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="the pages build engines: qdqtool[rtx]")
@pytest.mark.usefixtures("folder")
def test_the_start_page_shows_what_run_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Line by line, in order; digits may differ, since processors round differently and releases of the builder come."""

    def masked(text: str) -> list[str]:
        return [re.sub(r"[\d.,]+", "0", " ".join(line.split())) for line in text.splitlines() if line.strip()]

    (command,) = (line for line in "".join(blocks("start.md", "sh")).splitlines() if "runs/first" in line)
    (shown,) = (block for block in blocks("start.md", "text") if block.startswith("Verdict"))
    assert run(shlex.split(command)[1:]) == 0
    printed = masked(capsys.readouterr().out)
    first = printed.index(masked(shown)[0])
    assert printed[first : first + len(masked(shown))] == masked(shown)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="the pages build engines: qdqtool[rtx]")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_of_a_page_runs(page: str) -> None:
    """The blocks of a page are one program, from top to bottom."""
    text = "".join(map(textwrap.dedent, blocks(page, "python")))
    if "onnx_graphsurgeon" in text:
        pytest.importorskip("onnx_graphsurgeon", reason="graphs of onnx-graphsurgeon need it")
    exec(compile(text, page, "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_pages_that_exist(page: str) -> None:
    written = {
        "reference/commands.md",
        "reference/recipe.md",
        "reference/findings.md",
        "reference/artefacts.md",
    }
    written |= {"reference/exit-codes.md", "guides/other-tools.md", "security.md", "recipe.schema.json"}
    for target in LINK.findall((DOCS / page).read_text("utf-8")):
        path = (DOCS / page).parent / target
        inside = path.resolve().relative_to(DOCS).as_posix()
        assert path.exists() or inside in written, target


def test_pages_say_what_is_run_and_what_is_shown() -> None:
    """A block of commands is either run by these tests (sh) or marked as text."""
    for page in PAGES:
        assert not blocks(page, "bash"), page
        assert not blocks(page, "console"), page


def test_figures_of_the_page_about_formats_are_those_of_the_recipes() -> None:
    text = (DOCS / "guides" / "formats.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `([\w-]+)` \| [^|]+ \| ([\d.]+) \| ([\d.]+) \| (\S+ to \S+) \|", text, re.MULTILINE
    )
    assert len(rows) == 8
    for recipe, reference, value, interval in rows:
        head = (ROOT / "recipes" / f"{recipe}.yaml").read_text("utf-8")
        assert re.search(rf"FP32 {reference}, [\w ]+ {value} \({re.escape(interval)}\)", head), recipe


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="the pages build engines: qdqtool[rtx]")
def test_every_answer_of_the_troubleshooting_is_a_command_that_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quantized_by_onnxruntime()
    made = [
        "quantize model.onnx --samples calibration.npz[:8] -o model.qdq.onnx",
        "run model.onnx --samples calibration.npz[:8] --out runs/first",
        "build model.onnx --out float",
        "cache from-qdq model.qdq.onnx --model ignored.onnx --trt 10.3 -o old.cache",
    ]
    for line in made:
        assert run(shlex.split(line)) == 0, (line, capsys.readouterr().err)
    for source, target in {
        "runs/first/build.log": "build.log",
        "runs/first/layers.json": "layers.json",
        "float/build.log": "implicit.log",
        "float/layers.txt": "fp16.json",
    }.items():
        shutil.copy(folder / source, folder / target)
    rows = [
        line for line in (DOCS / "troubleshooting.md").read_text("utf-8").splitlines() if "| `qdqtool" in line
    ]
    assert len(rows) >= 40
    # an answer that is no: an engine that is not INT8, a model with mistakes, a cache that lacks tensors
    may_say_no = ("engine is-int8", "lint theirs.onnx", "cache lint", "lint model.qdq.onnx --target 8.6")
    for row in rows:
        for command in re.findall(r"`qdqtool ([^`]+)`", row):
            code = run(shlex.split(command))
            assert code == 0 or (code == 1 and command.startswith(may_say_no)), (
                command,
                capsys.readouterr().err,
            )


SHOWN = re.compile(r"^(?:- run: )?(qdqtool .*?)(?:\s+#.*)?$", re.MULTILINE)
"""Commands that are shown and not run: they need a GPU, a data base, a long time, or a model that is not at hand."""


def shown() -> list[tuple[str, str]]:
    found = []
    for page in [README, "../recipes/INTEROPERATION.md", "../recipes/README.md", *PAGES]:
        for language in ("text", "yaml", ""):
            found += [(page, line) for block in blocks(page, language) for line in SHOWN.findall(block)]
    return found


def test_commands_are_shown_on_several_pages() -> None:
    assert len({page for page, _ in shown()}) >= 6


@pytest.mark.parametrize(("page", "line"), shown())
def test_a_command_that_is_only_shown_is_one(page: str, line: str) -> None:
    """Its command, options and values are there, and it lacks no argument."""
    command: Any = application()
    words = shlex.split(line.replace("...", "--samples calibration.npz"))[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    context = command.make_context("qdqtool", words)
    if context.params.get("recipe"):
        name, changes = context.params["recipe"], context.params.get("changes")
        assert recipes.load(name, changes or (), trust=True), page


@pytest.mark.parametrize("page", [page for page in ["../recipes/README.md", *PAGES] if blocks(page, "yaml")])
def test_recipes_that_are_shown_are_right(page: str, tmp_path: Path) -> None:
    for number, block in enumerate(blocks(page, "yaml")):
        if not re.search(r"^(samples|build|extends|sweep|place|calibrate):", block, re.MULTILINE):
            continue
        path = tmp_path / f"{number}.yaml"
        path.write_text(block, "utf-8")
        recipes.load(str(path))
