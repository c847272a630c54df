"""Every command of the documentation runs, page by page, in a folder with the files that the pages assume."""

from __future__ import annotations

import re
import shlex
import shutil
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from qdqtool.cli.app import run
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


def quantized_by_onnxruntime() -> None:
    import numpy as np
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
WITH_PYTHON = [page for page in [README, *PAGES] if blocks(page, "python")]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="the pages build engines: qdqtool[rtx]")
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_command_of_a_page_runs(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "".join(blocks(page, "sh"))
    if "theirs.onnx" in text:
        quantized_by_onnxruntime()
    for command in text.splitlines():
        words = shlex.split(command)
        assert words[0] == "qdqtool", command
        assert run(words[1:]) == 0, (command, capsys.readouterr().err)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(find_spec("tensorrt_rtx") is None, reason="the pages build engines: qdqtool[rtx]")
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_of_a_page_runs(page: str) -> None:
    """The blocks of a page are one program, from top to bottom."""
    exec(compile("".join(map(textwrap.dedent, blocks(page, "python"))), page, "exec"), {})


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
    assert len(rows) == 7
    for recipe, reference, value, interval in rows:
        head = (ROOT / "recipes" / f"{recipe}.yaml").read_text("utf-8")
        assert re.search(rf"FP32 {reference}, [\w ]+ {value} \({re.escape(interval)}\)", head), recipe
