"""Files, folders, tensors and nodes may be called anything: commands work, or say in a sentence why they cannot."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run
from qdqtool.cli.options import building, for_builder
from qdqtool.pipeline import recipes
from tests import models

FILES = {
    "directions": "\u202egnp.\u2066x",
    "emoji": "\U0001f600\u200d\U0001f525",
    "a terminal's commands": "a\x1b]0;PWN\x07b\x9b31m",
    "a runner's commands": "a\n::error::b",
    "options": "--json",
    "a shell's words": "a'b\"c`d$(e);f *?[a-z]~",
    "blanks": "  a  ",
    "formats": "%s%n{}{0}[red]x",
    "separators": "a:b,c=d#e@f",
    "as many letters as fit": "n" * 200,
    "letters and marks apart": "e\u0301",
}
QUICK = {"a terminal's commands", "directions", "controls"}
"""Names that are tried each time."""


def some(names: dict[str, str]) -> list[object]:
    """The names as parameters, all but a few of them slow."""
    marks = {name: [] if name in QUICK else [pytest.mark.slow] for name in names}
    return [pytest.param(text, id=name, marks=marks[name]) for name, text in names.items()]


posix = pytest.mark.skipif(os.name != "posix", reason="such names are POSIX's")


def material(folder: Path, name: str) -> tuple[str, str]:
    """A model and samples of this name, in a folder of this name."""
    inner = folder / name
    inner.mkdir()
    model, samples = inner / f"{name}.onnx", inner / f"{name}.npz"
    model.write_bytes(models.conv_chain().SerializeToString())
    with samples.open("wb") as stream:
        np.savez(stream, x=np.random.default_rng(0).standard_normal((2, 8, 8, 8)).astype(np.float32))
    return str(model), str(samples)


def plain(capsys: pytest.CaptureFixture[str]) -> str:
    """What was said, which a terminal and a runner take as text."""
    said = "".join(capsys.readouterr())
    assert {char for char in said if not char.isprintable() and char != "\n"} == set()
    assert [line for line in said.splitlines() if line.lstrip().startswith("::")] == []
    return said


@posix
@pytest.mark.parametrize("name", some(FILES))
def test_files_may_be_called_anything(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, samples = material(tmp_path, name)
    table, quantized = str(tmp_path / name / "t.json"), str(tmp_path / name / f"{name}.q.onnx")
    for words in (
        ("lint", model),
        ("place", model),
        ("calibrate", model, "--samples", samples, "-o", table),
        ("quantize", model, "--samples", samples, "-o", quantized),
        ("compare", model, quantized, "--samples", samples),
        ("lint", quantized, "--format", "sarif"),
    ):
        assert run(list(words)) in {0, 1}, plain(capsys)
        plain(capsys)
    assert onnx.load(quantized).graph.node


@posix
@pytest.mark.slow
@pytest.mark.parametrize("name", FILES.values(), ids=FILES)
def test_run_folders_may_be_called_anything(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx")
    model, samples = material(tmp_path, name)
    out = str(tmp_path / name / "out" / name)
    for words in (
        ("run", model, "--samples", samples, "--out", out),
        ("report", out, "--html"),
        ("audit", out),
        ("engine", "show", f"{out}/layers.json"),
        ("parse", f"{out}/build.log"),
    ):
        assert run(list(words)) in {0, 1}, plain(capsys)
        plain(capsys)


@posix
def test_names_that_are_not_utf8_are_refused_where_native_libraries_open_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(b"\xff\xfe")
    try:
        model, samples = material(tmp_path, name)
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    quantized = str(tmp_path / "q.onnx")
    assert run(["lint", model]) == 0
    assert run(["quantize", model, "--samples", samples, "-o", quantized]) == 0
    plain(capsys)
    for words in (
        ("compare", model, quantized, "--samples", samples),
        ("run", model, "--samples", samples, "--out", str(tmp_path / name / "out")),
        ("build", model, "--out", str(tmp_path / "built")),
    ):
        assert run(list(words)) == 5
        assert "is not UTF-8" in plain(capsys)


TENSORS = {
    "4,000 letters": "n" * 4000,
    "directions": "\u202ea\u2066",
    "emoji": "\U0001f600\u200d\U0001f525",
    "controls": "a\x1b]0;PWN\x07\x00\n::error::b",
    "a path": "../../../../etc/a",
    "a shell's words": "a'b\"c`d$(e);f *?[a-z]~",
    "formats": "%s{0}[red]x",
}


def renamed(name: str) -> onnx.ModelProto:
    """A chain whose nodes and tensors are called so, two of them in letters of another case only."""
    proto = models.conv_chain()
    outer = {one.name for one in (*proto.graph.input, *proto.graph.output)}
    names = [one for node in proto.graph.node for one in (*node.input, *node.output) if one]
    inside = [one for one in dict.fromkeys(names) if one not in outer]
    new = {one: f"{name}{'tT'[at % 2]}{at // 2}" for at, one in enumerate(inside)}
    for at, node in enumerate(proto.graph.node):
        node.name = f"{name}{'nN'[at % 2]}{at // 2}"
        node.input[:] = [new.get(one, one) for one in node.input]
        node.output[:] = [new.get(one, one) for one in node.output]
    for tensor in proto.graph.initializer:
        tensor.name = new.get(tensor.name, tensor.name)
    del proto.graph.value_info[:]
    return proto


def _work(folder: Path, proto: onnx.ModelProto, capsys: pytest.CaptureFixture[str]) -> Path:
    folder.mkdir()
    model, samples = folder / "m.onnx", folder / "s.npz"
    model.write_bytes(proto.SerializeToString())
    np.savez(samples, x=np.random.default_rng(0).standard_normal((2, 8, 8, 8)).astype(np.float32))
    words = ("--samples", str(samples), "-o")
    assert run(["calibrate", str(model), *words, str(folder / "t.json"), "--method", "all"]) == 0
    assert run(["quantize", str(model), *words, str(folder / "q.onnx")]) == 0
    plain(capsys)
    return folder / "q.onnx"


@pytest.mark.parametrize("name", some(TENSORS))
def test_tensors_and_nodes_may_be_called_anything(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = onnx.load(_work(tmp_path / "usual", models.conv_chain(), capsys))
    odd = onnx.load(_work(tmp_path / "odd", renamed(name), capsys))
    assert [node.op_type for node in odd.graph.node] == [node.op_type for node in usual.graph.node]
    # every file is named after the method, none after a tensor
    assert {path.name for path in (tmp_path / "odd").iterdir()} == {
        path.name for path in (tmp_path / "usual").iterdir()
    }


def test_no_two_files_of_a_command_differ_in_case_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _work(tmp_path / "a", renamed("x"), capsys)
    names = [path.name for path in (tmp_path / "a").rglob("*")]
    assert len({name.lower() for name in names}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names)


@pytest.mark.parametrize("shapes", ["'input:0':1x3x8x8", "it's:1x3x8x8", 'a "b":1', "\U0001f600:1"])
def test_shapes_are_read_with_every_quote_in_a_name(shapes: str) -> None:
    """As trtexec, options take a name in quotes, which names of TensorFlow need."""
    typed = building(target=None, sm=None, builder=None, shapes=("", shapes, ""))
    assert recipes.load(None, typed).build.opt_shapes == shapes


def test_the_command_that_lists_the_other_lines_of_a_cache_names_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "it's [1].cache"
    cache.write_text("TRT-8601-EntropyCalibration2\nimage: 3c010a14\nno entry\n", "utf-8")
    assert run(["cache", "show", str(cache)]) == 0
    typed = capsys.readouterr().err.replace("\n", "").partition("qdqtool ")[2]
    assert shlex.split(typed) == ["cache", "lint", str(cache)]


@pytest.mark.parametrize("typed", ["8.6,12.0", "sm86, 120", "86,120"])
def test_architectures_are_taken_as_nvidia_writes_them(typed: str) -> None:
    """8.6 was read as a number: "input should be a valid string"."""
    recipe = recipes.load(None, for_builder(None, typed))
    assert recipe.build.sm == recipe.placing.sm == recipe.placing.builder.sm == ("86", "120")
