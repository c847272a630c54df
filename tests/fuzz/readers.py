"""What can be fed with foreign files: how to make good ones, how to damage them, and what is done with the result.

An attempt may raise `QdqError` (but never `Bug`): everything else is a mistake of ours.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import onnx
from PIL import Image

from qdqtool.calibration.caches.files import read_cache
from qdqtool.calibration.histograms import load_histograms
from qdqtool.calibration.samples.labels import read_labels
from qdqtool.calibration.samples.opening import open_samples
from qdqtool.core import kinds
from qdqtool.core.artefacts import Artefact
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.recipe import InsertOptions, PlacementOptions, PrepareOptions
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.engine.layer_info import read as read_layers
from qdqtool.engine.profile_forms import read_profile
from qdqtool.engine.view import view as view_engine
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.typed.convert import convert
from qdqtool.pipeline import recipes
from qdqtool.placement.decide import decide
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import repair
from qdqtool.prediction.predict import predict
from tests import models
from tests.buildlog import small
from tests.fuzz import logs, mutations

INPUTS = (TensorInfo(name="x", dtype=DType.FLOAT32, shape=(1, 3, 8, 8)),)
Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Reader:
    """One kind of file.

    Attributes:
        seeds: good files by name; the name's ending is kept, for readers that look at it.
        damage: a damaged copy of a seed.
        attempt: reads it and does with it what commands do.
    """

    seeds: Callable[[], Files]
    damage: Callable[[bytes, random.Random], bytes]
    attempt: Callable[[Path], object]


@lru_cache
def run_folder() -> Files:
    """The files of a real run on a small model, as far as the builder is installed."""
    from qdqtool.cli.app import run

    with (
        tempfile.TemporaryDirectory() as folder,
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        home = Path(folder)
        proto = models.conv_chain()
        np.savez(home / "s.npz", x=np.random.default_rng(0).standard_normal((4, 8, 8, 8)).astype(np.float32))
        model = models.save(proto, home)
        run(["run", str(model), "--samples", str(home / "s.npz"), "--out", str(home / "out")])
        return {path.name: path.read_bytes() for path in (home / "out").iterdir() if path.is_file()}


def _models() -> Files:
    found = {f"{name}.onnx": make().SerializeToString() for name, make in models.ALL.items()}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("conv_chain", "attention", "residual_cnn"):
            found[f"{name}_qdq.onnx"] = serialize(_quantized(models.save(models.ALL[name](), Path(folder))))
    found["function.onnx"] = _function().SerializeToString()
    return found | _built_for_rules()


def _built_for_rules() -> Files:
    """Models that rules and repairs of their own recognise: packed weights, caches of decoders."""
    from tests.graph import test_other_tools as other
    from tests.placement import graphs

    makers = {
        **{name: made[0] for name, made in other.FORMS.items()},
        **other.TABLES,
        **{f"cache {form}": partial(graphs.decoder, form=form) for form in ("concat", "scatter", "window")},
    }
    return {
        f"{re.sub('[^a-z0-9]+', '_', name.lower())}.onnx": make().SerializeToString()
        for name, make in makers.items()
    }


def _quantized(path: Path):
    model = prepare(load(path), PrepareOptions())
    return _inserted(model)


def _inserted(model):
    placement = decide(model.view, PlacementOptions())
    ranges = {
        decision.tensor: TensorRange(tensor=decision.tensor, amax=(1.0,)) for decision in placement.quantized
    }
    for decision in placement.quantized:
        shape = model.view.info(decision.tensor).shape
        if decision.spec is not None and decision.spec.axis is not None and shape is not None:
            count = shape[decision.spec.axis]
            amax = (1.0,) * (count if isinstance(count, int) else 1)
            ranges[decision.tensor] = TensorRange(tensor=decision.tensor, amax=amax, axis=decision.spec.axis)
    return insert(model, placement, CalibrationTable(ranges=tuple(ranges.values())), InsertOptions())


def _function() -> onnx.ModelProto:
    helper = onnx.helper
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Relu", ["s"], ["b"])]
    function = helper.make_function("local", "Square", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    graph = helper.make_graph(
        [helper.make_node("Square", ["x"], ["y"], domain="local", name="call")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N", 4])],
        [helper.make_tensor_value_info("y", 1, ["N", 4])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=8)


def use_model(path: Path) -> None:
    model = load(path)
    lint(model)
    predict(model)
    ready = prepare(model, PrepareOptions())
    decide(ready.view, PlacementOptions())
    for edit in (
        lambda: decide(ready.view, PlacementOptions(kv_cache="int8")),
        lambda: _inserted(ready),
        lambda: convert(model, InsertOptions(types="fp16", overflow="ignore")),
        lambda: repair(model),
    ):
        refused(edit)


def use_commands(path: Path) -> None:
    """Calibrate a damaged model and compare it with itself: onnxruntime runs it."""
    _command(path, "calibrate", str(path), "--samples", "random:1", "-o", str(path.with_suffix(".json")))
    _command(path, "compare", str(path), str(path), "--samples", "random:1")


def use_builder(path: Path) -> None:
    """Build a damaged model: the native builder may die, we may not."""
    _command(path, "build", str(path), "--out", str(path.parent / "built"), "--stack-mib", "64")


def _command(path: Path, *words: str) -> None:
    """A command line that may end with any documented code but that of a mistake of ours."""
    from qdqtool.cli.app import run

    said = io.StringIO()
    with chdir(path.parent), redirect_stdout(io.StringIO()), redirect_stderr(said):
        code = run(list(words))
    for report in path.parent.glob("qdqtool-bug-*.txt"):
        said.write(report.read_text("utf-8")[-600:])
        report.unlink()
    if code not in range(6):
        raise AssertionError(f"{words[0]} ended with {code}: {said.getvalue()[-900:]}")


@contextmanager
def chdir(folder: Path) -> Iterator[None]:
    """Work in another folder; contextlib.chdir is there from Python 3.11 on."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def refused(act: Callable[[], object]) -> None:
    """Do something that may be refused, so that what comes after it is still tried."""
    from qdqtool.errors import Bug, QdqError

    try:
        act()
    except Bug:
        raise
    except QdqError:
        return


def _arrays() -> Files:
    dice = np.random.default_rng(0)
    found = {}
    for name, array in (
        ("f.npy", dice.standard_normal((4, 3, 8, 8)).astype(np.float32)),
        ("u.npy", dice.integers(0, 255, (4, 8, 8, 3)).astype(np.uint8)),
        ("h.npy", dice.standard_normal((3, 8, 8)).astype(np.float16)),
    ):
        stream = io.BytesIO()
        np.save(stream, array)
        found[name] = stream.getvalue()
    return found


def _archives() -> Files:
    stream = io.BytesIO()
    x = np.zeros((4, 3, 8, 8), np.float32)
    np.savez(stream, x=x, labels=np.arange(4))
    packed = io.BytesIO()
    np.savez_compressed(packed, x=x)
    histograms = {name: data for name, data in run_folder().items() if name.endswith(".npz")}
    return {"s.npz": stream.getvalue(), "c.npz": packed.getvalue(), **histograms}


def _polygraphy() -> Files:
    import base64

    stream = io.BytesIO()
    np.save(stream, np.zeros((1, 3, 8, 8), np.float32))
    array = {"array": base64.b64encode(stream.getvalue()).decode(), "polygraphy_class": "ndarray"}
    return {"inputs.json": json.dumps([{"x": array}]).encode()}


def use_samples(path: Path) -> None:
    source = open_samples(str(path), INPUTS, limit=4)
    for sample in source:
        assert sample.feeds


def use_archive(path: Path) -> None:
    refused(lambda: load_histograms(path))
    use_samples(path)


def _images() -> Files:
    found = {}
    for name, mode in (("a.png", "RGB"), ("b.jpg", "RGB"), ("c.png", "1"), ("d.bmp", "L"), ("e.gif", "P")):
        stream = io.BytesIO()
        Image.new(mode, (8, 8)).save(stream, {"jpg": "jpeg"}.get(name[2:], name[2:]))
        found[name] = stream.getvalue()
    return found


def use_image(path: Path) -> None:
    folder = path.parent / "pictures"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / path.name).write_bytes(path.read_bytes())
    use_samples(folder)


def _labels() -> Files:
    stream = io.BytesIO()
    np.save(stream, np.arange(9))
    return {
        "l.npy": stream.getvalue(),
        "l.txt": b"0\n1\n2\n",
        "l.csv": b"name,label\na.png,1\nb.png,2\n",
        "l.json": b'{"a.png": 1, "b.png": 2}',
    }


def _caches() -> Files:
    from qdqtool.calibration.caches.files import write_pairs

    pairs = [("x", '{"data": {"highest": 1.5}}'), ("conv1_y", "0.25"), ("relu1_y", "0.5")]
    text = "TRT-8601-EntropyCalibration2\nx: 3c010a14\nconv1_y: 3d1b2c3d\nrelu1_y: 3c8efa35\n"
    return {
        "a.cache": text.encode(),
        "b.cache": text.replace("8601", "7203").encode(),
        "c.json": b'{"x": "3c010a14"}',
        "d.flatbuffers": write_pairs(pairs),
    }


def _recipes() -> Files:
    folder = Path(__file__).parents[2] / "recipes"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.yaml"))}


def _damaged_text(content: bytes, dice: random.Random) -> bytes:
    lines = content.split(b"\n")
    for _ in range(dice.choice((1, 2, 5))):
        place = dice.randrange(len(lines))
        word = dice.choice(mutations.WORDS).encode()
        kind = dice.randrange(5)
        if kind == 0:
            lines[place] = mutations.damaged_bytes(lines[place], dice)
        elif kind == 1:
            lines[place : place + 1] = []
        elif kind == 2:
            lines[place:place] = [lines[place]] * dice.choice((1, 200))
        elif kind == 3:
            key, colon, _ = lines[place].partition(b":")
            lines[place] = (
                key
                + colon
                + b" "
                + dice.choice((word, b"[[[", b"{a: b}", b"&a *a", b"!!python/object:os", b"9" * 40))
            )
        else:
            lines[place] = b"  " * dice.randrange(9) + word + b": " + lines[place].lstrip()
        lines = lines or [b""]
    return b"\n".join(lines)


def _layers() -> Files:
    found = {name: data for name, data in run_folder().items() if name == "layers.txt"}
    layers = [
        {
            "Name": "conv1",
            "LayerType": "CaskConvolution",
            "Inputs": [{"Name": "x", "Dimensions": [1, 8, 8, 8], "Format/Datatype": "Int8"}],
            "Outputs": [{"Name": "y", "Dimensions": [1, 8, 8, 8], "Format/Datatype": "Int8"}],
            "TacticName": "sm80_xmma",
            "Metadata": "[ONNX Layer: conv1]",
        },
        {"Name": "relu", "LayerType": "PointWise", "Inputs": [], "Outputs": []},
    ]
    return {
        **found,
        "layers.json": json.dumps({"Layers": layers, "Bindings": ["x", "y"]}).encode(),
        "names.json": b'{"Layers": ["a", "b"]}',
    }


def use_layers(path: Path) -> None:
    view_engine(read_layers(path))


def _profiles() -> Files:
    entries = [
        {"count": 10},
        {"name": "conv1", "timeMs": 1.5, "averageMs": 0.15, "medianMs": 0.15, "percentage": 100},
    ]
    table = b"Layer   Time (ms)   Avg. Time (ms)   Time %\n conv1   1.50   0.1500   60.0\n relu   1.00   0.1000   40.0\n Total   2.50   0.2500   100.0\n"
    return {"p.json": json.dumps(entries).encode(), "p.txt": table}


def _artefacts() -> Files:
    found = {name: data for name, data in run_folder().items() if name.endswith(".json")}
    assert found
    return found


_KINDS = {entry.kind: entry for entry in vars(kinds).values() if isinstance(entry, Artefact)}


def use_artefact(path: Path) -> None:
    content = path.read_bytes()
    for kind, artefact in _KINDS.items():
        if b'"' + kind.encode() + b'"' in content:
            refused(lambda artefact=artefact: artefact.read(path))


def _logs() -> Files:
    found = {name: data for name, data in run_folder().items() if name == "build.log"}
    return {"small.log": small.trtexec().encode(), **found}


def _json_or_bytes(content: bytes, dice: random.Random) -> bytes:
    return (
        mutations.damaged_json(content, dice) if dice.randrange(3) else mutations.damaged_bytes(content, dice)
    )


def _text_or_bytes(content: bytes, dice: random.Random) -> bytes:
    return _damaged_text(content, dice) if dice.randrange(3) else mutations.damaged_bytes(content, dice)


READERS: dict[str, Reader] = {
    "onnx": Reader(_models, mutations.damaged_model, use_model),
    "arrays": Reader(
        _arrays, lambda content, dice: mutations.damaged_bytes(content[:96], dice) + content[96:], use_samples
    ),
    "archives": Reader(_archives, mutations.damaged_zip, use_archive),
    "polygraphy": Reader(_polygraphy, _json_or_bytes, use_samples),
    "images": Reader(_images, mutations.damaged_bytes, use_image),
    "labels": Reader(_labels, _json_or_bytes, read_labels),
    "commands": Reader(_models, mutations.damaged_model, use_commands),
    "builds": Reader(_models, mutations.damaged_model, use_builder),
    "caches": Reader(_caches, _text_or_bytes, read_cache),
    "recipes": Reader(_recipes, _text_or_bytes, lambda path: recipes.load(str(path))),
    "layers": Reader(_layers, _json_or_bytes, use_layers),
    "profiles": Reader(_profiles, _json_or_bytes, read_profile),
    "artefacts": Reader(_artefacts, _json_or_bytes, use_artefact),
    "logs": Reader(_logs, _text_or_bytes, lambda path: logs.survive(path.read_bytes(), dump=True)),
}
