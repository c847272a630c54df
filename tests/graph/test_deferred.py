"""Heavy weights of a large model stay in their file, and nothing else changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.calibration.session import Fetcher, open_collecting
from qdqtool.core.recipe import InsertOptions
from qdqtool.errors import InputFileError
from qdqtool.graph.instrumented.probe import probe
from qdqtool.graph.onnx_io import deferred
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.read import parse_in_pieces as read_model
from qdqtool.graph.onnx_io.read import serialize_in_pieces
from qdqtool.graph.onnx_io.save import digest, save, save_split, serialize
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.typed.convert import convert
from qdqtool.graph.view import Model
from qdqtool.runtime.runner import open_model
from tests import models
from tests.graph.placing import placement_for, table_for
from tests.placement.qdq import GRAPHS

WIDE = 64


@pytest.fixture
def put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of any size are treated as large ones."""
    monkeypatch.setattr(deferred, "FROM", 0)
    monkeypatch.setattr(deferred, "HEAVY", 0)


def chain(kind: type = np.float32) -> onnx.ModelProto:
    """Two products whose weights onnx's own passes need not see."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((WIDE, WIDE)).astype(kind) for _ in range(2)]
    element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    ends = [onnx.helper.make_tensor_value_info(name, element, [1, WIDE]) for name in "xy"]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w0"], ["h"], name="first"),
        onnx.helper.make_node("MatMul", ["h", "w1"], ["y"], name="second"),
    ]
    tensors = [onnx.numpy_helper.from_array(value, f"w{at}") for at, value in enumerate(weights)]
    graph = onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def outside(proto: onnx.ModelProto, folder: Path) -> Path:
    """The model with its weights in a file beside it."""
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def inside(proto: onnx.ModelProto, folder: Path) -> Path:
    return models.save(proto, folder)


def waiting(model: Model) -> list[str]:
    return [tensor.name for tensor in model.proto.graph.initializer if deferred.is_deferred(tensor)]


@pytest.mark.parametrize("written", [inside, outside])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_a_model_whose_weights_wait_in_their_file_is_the_same_model(written, kind, tmp_path, monkeypatch):
    path = written(chain(kind), tmp_path)
    held = load(path)
    monkeypatch.setattr(deferred, "FROM", 0)
    monkeypatch.setattr(deferred, "HEAVY", 0)
    put_off = load(path)
    assert waiting(held) == []
    assert waiting(put_off) == ["w0", "w1"]
    assert serialize(put_off) == serialize(held)
    assert digest(put_off) == digest(held)
    assert np.array_equal(put_off.view.constant("w1"), held.view.constant("w1"))
    for model, name in ((held, "held"), (put_off, "put_off")):
        (tmp_path / name).mkdir()
        save(model, tmp_path / name / "one.onnx")
        save_split(model, tmp_path / name / "two.onnx")
    names = sorted(file.name for file in (tmp_path / "held").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "put_off").iterdir())
    assert all(
        (tmp_path / "held" / name).read_bytes() == (tmp_path / "put_off" / name).read_bytes()
        for name in names
    )


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_no_model_of_the_zoo_changes_when_its_weights_wait(name, tmp_path, monkeypatch):
    path = inside(GRAPHS[name](), tmp_path)
    held = serialize(load(path))
    monkeypatch.setattr(deferred, "FROM", 0)
    monkeypatch.setattr(deferred, "HEAVY", 0)
    assert serialize(load(path)) == held


def test_pairs_are_inserted_into_waiting_weights_as_into_any(tmp_path, monkeypatch):
    path = inside(chain(), tmp_path)
    written = []
    for _ in range(2):
        model = load(path)
        placement = placement_for(model)
        made = insert(model, placement, table_for(model, placement, models.feeds(chain())), InsertOptions())
        written.append(serialize(made))
        monkeypatch.setattr(deferred, "FROM", 0)
        monkeypatch.setattr(deferred, "HEAVY", 0)
    assert written[0] == written[1]


@pytest.mark.parametrize("written", [outside, inside])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in {"conv_chain", "attention"} else pytest.mark.slow)
        for name in sorted(models.ALL)
    ],
)
@pytest.mark.usefixtures("put_off")
def test_a_probe_reads_weights_where_they_lie_and_returns_the_same_bits(written, name, tmp_path):
    path = written(models.ALL[name](), tmp_path)
    model = load(path)
    tensors = list(dict.fromkeys(output for node in model.view.nodes for output in node.outputs if output))
    feeds = models.feeds(models.ALL[name](), seed=0)
    values = []
    for staying in (False, True):
        folder = tmp_path / str(staying)
        folder.mkdir()
        made = probe(model, tensors, folder, staying=staying)
        runs = Fetcher(open_collecting(made.source, 1, made.home), tensors)
        values.append({tensor: value.copy() for tensor, value in runs.run(feeds, "")})
        weights = folder / "probe.data"
        waits = bool(waiting(model))
        assert weights.exists() == (not (staying and waits))
        assert (made.home == path.resolve().parent) == (staying and waits)
    for tensor in tensors:
        np.testing.assert_array_equal(values[0][tensor], values[1][tensor])


@pytest.mark.usefixtures("put_off")
def test_a_probe_of_weights_that_changed_is_an_error_that_names_the_file(tmp_path):
    path = outside(chain(), tmp_path)
    model = load(path)
    (tmp_path / "weights.bin").write_bytes(b"\0")
    with pytest.raises(InputFileError, match=r"weights\.bin: the file changed while the command was running"):
        probe(model, ["h"], tmp_path, staying=True)


@pytest.mark.usefixtures("put_off")
@pytest.mark.parametrize("written", [inside, outside])
def test_a_file_that_changes_while_it_is_worked_on_is_an_error_that_names_it(written, tmp_path):
    path = written(chain(), tmp_path)
    model = load(path)
    (source,) = [path] if written is inside else [tmp_path / "weights.bin"]
    source.write_bytes(source.read_bytes() + b"\0")
    with pytest.raises(InputFileError, match="changed while the command was running") as caught:
        model.view.constant("w0")
    assert caught.value.where == str(source)
    source.unlink()
    with pytest.raises(InputFileError, match="'w0' and can no longer be read"):
        serialize(model)


@pytest.mark.usefixtures("put_off")
def test_no_file_can_claim_that_its_weights_wait_somewhere(tmp_path):
    """The mark of a reference is drawn anew in every process; what a file says of its weights is checked."""
    secret = tmp_path / "elsewhere" / "secret.bin"
    secret.parent.mkdir()
    secret.write_bytes(bytes(4 * WIDE * WIDE))
    honest = load(inside(chain(), tmp_path))
    proto = chain()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    marks = [
        entry for entry in honest.proto.graph.initializer[0].external_data if entry.key.startswith("qdqtool")
    ]
    places = {"location": str(secret), "offset": 0, "length": secret.stat().st_size}
    places |= {entry.key: "0" * 32 + entry.value[32:] for entry in marks}
    for key, value in places.items():
        tensor.external_data.add(key=key, value=str(value))
    (tmp_path / "model").mkdir()
    with pytest.raises(InputFileError, match="outside the model's folder"):
        load(inside(proto, tmp_path / "model"))


@pytest.mark.parametrize("types", ["fp16", "bf16"])
@pytest.mark.parametrize("name", [*(name for name in sorted(GRAPHS) if "microsoft" not in name), "chain"])
def test_a_model_of_waiting_weights_is_converted_and_written_as_any(name, types, tmp_path, monkeypatch):
    """Byte for byte: weights are narrowed when they are read, and the file is written one weight at a time."""
    path = inside(chain() if name == "chain" else GRAPHS[name](), tmp_path)
    options = InsertOptions(types=types)
    held = serialize(convert(load(path), options)[0])
    monkeypatch.setattr(deferred, "FROM", 0)
    monkeypatch.setattr(deferred, "HEAVY", 0)
    found, _ = convert(load(path), options)
    assert serialize(found) == held
    save(found, tmp_path / "saved.onnx")
    assert (tmp_path / "saved.onnx").read_bytes() == held
    if name == "chain":
        assert len(waiting(found)) == 2
        assert all(tensor.data_type != onnx.TensorProto.FLOAT for tensor in found.proto.graph.initializer)


@pytest.mark.parametrize("written", [inside, outside])
def test_a_narrowed_weight_is_nowhere_in_a_file_as_it_is(written, tmp_path, put_off):
    """onnxruntime must not read the FP32 bytes of the file as FP16."""
    found, _ = convert(load(written(chain(), tmp_path)), InsertOptions(types="fp16"))
    weights = tuple(found.proto.graph.initializer)
    assert deferred.home_of(weights) is None
    for tensor in weights:
        stub = deferred.from_home(tensor)
        assert stub.data_location != onnx.TensorProto.EXTERNAL
        assert stub.raw_data == deferred.content(tensor)
        assert np.array_equal(deferred.array(tensor), onnx.numpy_helper.to_array(stub))
    feeds = {"x": np.ones((1, WIDE), np.float32)}
    (direct,) = open_model(found, description="test").run(feeds).values()
    (expected,) = models.run(deferred.whole(found.proto), feeds).values()
    assert np.array_equal(direct, expected)


@pytest.mark.parametrize("size", [1024, (1 << 14) - 30, 1 << 14, (1 << 21) + 5])
def test_lengths_of_all_sizes_are_written_as_protobuf_writes_them(size, tmp_path, put_off):
    proto = chain()
    proto.doc_string, proto.graph.doc_string = "before", "behind the weights"
    proto.metadata_props.add(key="behind", value="the graph")
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.full(size, 7, np.uint8), "w2"))
    proto.graph.initializer[2].doc_string = "behind the values"
    model = read_model(inside(proto, tmp_path))
    assert "w2" in [tensor.name for tensor in model.graph.initializer if deferred.is_deferred(tensor)]
    assert b"".join(serialize_in_pieces(model)) == deferred.whole(model).SerializeToString(deterministic=True)


LARGE = """
import json, sys
from pathlib import Path
from qdqtool.graph.onnx_io.load import load
from qdqtool.placement.lint import lint
from qdqtool.cli.app import run
path = Path(sys.argv[1])
if sys.argv[2] == "lint":
    lint(load(path))
else:
    assert run(["convert", str(path), "--types", "fp16", "-o", str(path.with_name("out.onnx"))]) == 0
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps(int(peak.split()[1]) >> 10))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is of Linux")
@pytest.mark.parametrize("work", ["lint", "convert"])
def test_work_on_a_large_model_does_not_hold_its_weights(work, tmp_path):
    side, count = 2048, 32  # 512 MiB of weights
    proto = chain()
    del proto.graph.initializer[:]
    del proto.graph.node[:]
    for at in range(count):
        tensor = onnx.TensorProto(name=f"w{at}", data_type=onnx.TensorProto.FLOAT, dims=[side, side])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {
            "location": "w.bin",
            "offset": at * 4 * side * side,
            "length": 4 * side * side,
        }.items():
            tensor.external_data.add(key=key, value=str(value))
        proto.graph.initializer.append(tensor)
        proto.graph.node.add(
            op_type="MatMul",
            input=[f"x{at}" if at else "x", f"w{at}"],
            output=[f"x{at + 1}" if at < count - 1 else "y"],
        )
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = side
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.truncate(count * 4 * side * side)
    path = tmp_path / "large.onnx"
    path.write_bytes(proto.SerializeToString())
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(path), work], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) < 300  # MiB
