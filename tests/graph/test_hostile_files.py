"""A model from a stranger reads no file but its own, takes no memory that its size does not justify, and never crashes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.cli.app import run
from qdqtool.errors import InputFileError, SystemFault, UsageError
from qdqtool.graph.canonical import constants
from qdqtool.graph.onnx_io import passes
from qdqtool.graph.onnx_io.load import load
from qdqtool.io import files
from qdqtool.io.files import VARIABLE, budget, parse_size
from tests import models

_SECRET = np.arange(4, dtype=np.float32) + 111


def _external(name: str = "weights", location: str = "secret.bin", **entries: object) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def _in_function() -> onnx.ModelProto:
    body = [
        helper.make_node("Constant", [], ["k"], value=_external()),
        helper.make_node("Add", ["a", "k"], ["b"]),
    ]
    function = helper.make_function("local", "Shift", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    graph = helper.make_graph(
        [helper.make_node("Shift", ["x"], ["y"], domain="local")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=8)


def _in_nested_body() -> onnx.ModelProto:
    def body(name: str, nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4])]
        )

    inner = body("inner", [helper.make_node("Constant", [], ["inner_y"], value=_external())])
    other = body("other", [helper.make_node("Identity", ["x"], ["other_y"])])
    outer = body("outer", [helper.make_node("If", ["c"], ["outer_y"], then_branch=inner, else_branch=other)])
    plain = body("plain", [helper.make_node("Identity", ["x"], ["plain_y"])])
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=outer, else_branch=plain)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _in_sparse_initializer() -> onnx.ModelProto:
    proto = models.conv_chain()
    sparse = proto.graph.sparse_initializer.add(dims=[8])
    sparse.values.CopyFrom(_external("thin"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([0, 2, 4, 6]), "places"))
    return proto


def _in_sparse_constant() -> onnx.ModelProto:
    proto = models.conv_chain()
    sparse = onnx.SparseTensorProto(dims=[8])
    sparse.values.CopyFrom(_external("thin"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([0, 2, 4, 6]), "places"))
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["unused"], sparse_value=sparse))
    return proto


def _in_training_information() -> onnx.ModelProto:
    proto = models.conv_chain()
    proto.training_info.add().initialization.initializer.append(_external())
    return proto


PLACES = {
    "function": _in_function,
    "nested body": _in_nested_body,
    "sparse initializer": _in_sparse_initializer,
    "sparse constant": _in_sparse_constant,
    "training information": _in_training_information,
}


def _saved(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("place", PLACES)
def test_external_data_is_never_read_from_the_current_directory(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _saved(PLACES[place](), tmp_path)
    (tmp_path / "secret.bin").write_bytes(_SECRET.tobytes())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputFileError, match=r"'secret\.bin', which is missing"):
        load(path)


@pytest.mark.parametrize("place", PLACES)
def test_external_data_beside_the_model_is_read_from_any_directory(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _saved(PLACES[place](), tmp_path)
    (path.parent / "secret.bin").write_bytes(_SECRET.tobytes())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret.bin").write_bytes(np.zeros(4, np.float32).tobytes())
    monkeypatch.chdir(elsewhere)
    content = load(path).proto.SerializeToString()
    if place != "training information":
        assert _SECRET[1:2].tobytes() in content
    assert b"secret.bin" not in content


@pytest.mark.parametrize("place", ["function", "nested body"])
def test_a_path_out_of_the_folder_is_refused_wherever_it_stands(place: str, tmp_path: Path) -> None:
    content = PLACES[place]().SerializeToString().replace(b"secret.bin", b"../ret.bin")
    path = tmp_path / "model" / "model.onnx"
    path.parent.mkdir()
    path.write_bytes(content)
    (tmp_path / "ret.bin").write_bytes(_SECRET.tobytes())
    with pytest.raises(InputFileError, match="outside the model's folder"):
        load(path)


@pytest.mark.parametrize(
    ("target", "home", "location", "is_read"),
    [
        ("models--a--b/blobs/0123", "models--a--b/snapshots/main", "w.bin", True),
        ("models--a--b/blobs/0123", "models--a--b/snapshots/main/onnx", "w.bin", True),
        ("models--a--b/blobs/0123", "models--a--b/snapshots/main/onnx", "data/w.bin", True),
        ("models--a--b/blobs/0123", "models--a--b/snapshots/main", "../../blobs/0123", False),
        ("models--a--c/blobs/0123", "models--a--b/snapshots/main", "w.bin", False),
        ("models--a--b/blobs/of/0123", "models--a--b/snapshots/main", "w.bin", False),
        ("models--a--b/refs/0123", "models--a--b/snapshots/main", "w.bin", False),
        ("secret/0123", "models--a--b/snapshots/main", "w.bin", False),
        ("a/blobs/0123", "a/snapshots/main", "w.bin", False),
        ("secret/0123", "model", "w.bin", False),
    ],
)
def test_a_link_leads_out_of_the_folder_only_into_its_own_hugging_face_cache(
    target: str, home: str, location: str, is_read: bool, tmp_path: Path
) -> None:
    tensor = _external("w", location)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", 1, [4])],
        [tensor],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    blob, link = tmp_path / target, tmp_path / home / location
    for file in (blob, link, tmp_path / home / "model.onnx"):
        file.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(_SECRET.tobytes())
    if not link.exists():
        link.symlink_to(blob)
    (tmp_path / home / "model.onnx").write_bytes(proto.SerializeToString())
    if is_read:
        value = load(tmp_path / home / "model.onnx").view.constant("w")
        assert value is not None
        assert value.tolist() == _SECRET.tolist()
    else:
        with pytest.raises(InputFileError, match="outside the model's folder"):
            load(tmp_path / home / "model.onnx")


def test_blobs_that_are_a_link_themselves_are_outside(tmp_path: Path) -> None:
    home, secret = tmp_path / "models--a--b" / "snapshots" / "main", tmp_path / "secret"
    home.mkdir(parents=True)
    secret.mkdir()
    (secret / "0123").write_bytes(_SECRET.tobytes())
    (tmp_path / "models--a--b" / "blobs").symlink_to(secret)
    (home / "secret.bin").symlink_to(tmp_path / "models--a--b" / "blobs" / "0123")
    (home / "model.onnx").write_bytes(PLACES["function"]().SerializeToString())
    with pytest.raises(InputFileError, match="outside the model's folder"):
        load(home / "model.onnx")


def _counted(limit: int, kind: int, opset: int) -> onnx.ModelProto:
    """y = Cast(Range(0, limit, 1))."""
    values = [helper.make_tensor(n, kind, [], [v]) for n, v in (("a", 0), ("b", limit), ("c", 1))]
    nodes = [helper.make_node("Range", ["a", "b", "c"], ["r"]), helper.make_node("Cast", ["r"], ["y"], to=1)]
    graph = helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("y", 1, None)], values)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _doubled() -> onnx.ModelProto:
    """A shape that is joined with itself 45 times."""
    s = models.Sketch()
    shape = s.node("Shape", [s.input("x", [1, 2, 3, 4])], "shape0")
    for number in range(45):
        shape = s.node("Concat", [shape, shape], f"shape{number + 1}", axis=0)
    s.output(s.node("ConstantOfShape", [shape], "y"))
    return s.model()


def _many_dimensions() -> onnx.ModelProto:
    """A tensor with as many dimensions as its input declares elements."""
    s = models.Sketch()
    s.output(s.node("ConstantOfShape", [s.input("shape", [1 << 34], TensorProto.INT64)], "y"))
    return s.model()


HUNGRY = {
    "Range of integers": lambda: _counted(1 << 40, TensorProto.INT64, 17),
    "Range of floats": lambda: _counted(1 << 40, TensorProto.FLOAT, 17),
    "Range in an old opset": lambda: _counted(1 << 40, TensorProto.INT64, 11),
    "Concat that doubles": _doubled,
    "ConstantOfShape with dimensions without end": _many_dimensions,
}

_UNDER_LIMIT = """
import resource, sys
from pathlib import Path
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.platform import peak_mib
try:
    load(Path(sys.argv[1]))
except InputFileError as error:
    print("refused", error.fix)
else:
    print("opened")
children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
print(round(max(peak_mib(), children)))
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (place > 0)) for place, name in enumerate(HUNGRY)]
)
def test_a_small_model_cannot_take_gigabytes(name: str, tmp_path: Path) -> None:
    path = models.save(HUNGRY[name](), tmp_path)
    assert path.stat().st_size < 4096
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_LIMIT, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    verdict, peak = done.stdout.splitlines()
    assert verdict.startswith(("refused", "opened"))
    assert int(peak) < 1024


def test_the_reader_goes_on_after_it_has_refused_a_hungry_model(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="shape inference of the model"):
        load(models.save(HUNGRY["Range of integers"](), tmp_path))
    assert load(models.save(models.conv_chain(), tmp_path)).view.info("conv1_y").shape == (1, 8, 8, 8)


@pytest.mark.skipif(sys.platform == "win32", reason="other signals and no limit of processor time there")
@pytest.mark.parametrize(
    ("child", "said"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crashed"),
        (
            "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass",
            "the time limit",
        ),
    ],
)
def test_a_pass_that_ends_its_child_is_the_models_doing_and_ends_only_that(
    child: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes._end()
    monkeypatch.setattr(passes, "_START", child)
    with pytest.raises(passes.PassExceeded, match=said):
        passes.run_pass("check", models.conv_chain())
    monkeypatch.undo()
    passes.run_pass("check", models.conv_chain())


def test_a_child_that_cannot_start_is_no_verdict_on_the_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passes._end()
    path = models.save(models.conv_chain(), tmp_path)
    monkeypatch.setattr(passes, "_START", "import a_library_that_is_missing")
    with pytest.raises(SystemFault, match="the model was not checked"):
        load(path)
    monkeypatch.undo()
    load(path)


@pytest.mark.skipif(sys.platform == "win32", reason="no processor time is limited there")
@pytest.mark.parametrize(
    ("child", "patience", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", 10.0, "was killed"),
        ("import time; time.sleep(60)", 1e-3, "too little processor time"),
    ],
)
def test_a_child_that_others_end_is_no_verdict_on_the_model(
    child: str, patience: float, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passes._end()
    path = models.save(models.conv_chain(), tmp_path)
    monkeypatch.setattr(passes, "_START", child)
    monkeypatch.setattr(passes, "_PATIENCE", patience)
    with pytest.raises(SystemFault, match=f"{said}.*the model was not checked"):
        load(path)
    monkeypatch.undo()
    load(path)


def test_an_interrupted_pass_is_no_verdict_on_the_next_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(passes, "_exactly", interrupted)
    with pytest.raises(KeyboardInterrupt):
        passes.run_pass("check", models.conv_chain())
    monkeypatch.undo()
    assert load(models.save(models.conv_chain(), tmp_path)).view.nodes


def test_the_child_imports_nothing_from_the_current_directory(tmp_path: Path) -> None:
    path = models.save(models.conv_chain(), tmp_path)
    for name in ("json", "numpy", "onnx", "sitecustomize", "qdqtool"):
        (tmp_path / f"{name}.py").write_text("open('planted', 'w')")
    code = "import sys; sys.path.remove(''); from pathlib import Path\nfrom qdqtool.graph.onnx_io.load import load\nload(Path('model.onnx'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=path.parent, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "planted").exists()


def test_an_external_file_beyond_the_budget_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = models.conv_chain()
    tensor = proto.graph.initializer.add(name="huge", data_type=TensorProto.INT8, dims=[16 << 30])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="huge.bin")
    with (tmp_path / "huge.bin").open("wb") as stream:
        os.truncate(stream.fileno(), 16 << 30)  # sparse: it takes no room on the disk
    monkeypatch.setenv(VARIABLE, "4GiB")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        InputFileError, match="17,179,869,184 bytes, more than the 4,294,967,296 allowed"
    ) as caught:
        load(models.save(proto, tmp_path))
    assert "--max-memory" in caught.value.fix
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


def _naming(count: int, size: int, step: int) -> onnx.ModelProto:
    """A model with as many external tensors, each so many bytes behind the one before."""
    proto = models.conv_chain()
    for number in range(count):
        tensor = proto.graph.initializer.add(name=f"huge{number}", data_type=TensorProto.INT8, dims=[size])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "huge.bin"), ("offset", number * step)):
            tensor.external_data.add(key=key, value=str(value))
    return proto


@pytest.mark.parametrize(
    ("count", "size", "step", "there"),
    [(1, 16 << 30, 0, 0), (300, 8 << 20, 0, 8 << 20)],
    ids=["a sparse file", "one place named again and again"],
)
def test_weights_that_their_files_do_not_hold_are_refused(
    count: int, size: int, step: int, there: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(files, "free_memory", lambda: 1 << 40)
    with (tmp_path / "huge.bin").open("wb") as stream:
        stream.write(b"\1" * there)
        stream.truncate(max(there, size))
    if (tmp_path / "huge.bin").stat().st_blocks * 512 >= size and not there:
        pytest.skip("this file system has no sparse files")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputFileError, match=f"which hold {there:,} of them") as caught:
        load(models.save(_naming(count, size, step), tmp_path))
    assert "--max-memory" in caught.value.fix
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20


def test_without_a_stated_budget_weights_may_take_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(files, "free_memory", lambda: 1000)
    (tmp_path / "huge.bin").write_bytes(b"\1" * 1001)
    with pytest.raises(InputFileError, match="1,001 bytes, more than the 1,000 of free memory"):
        load(models.save(_naming(1, 1001, 0), tmp_path))
    monkeypatch.setenv(VARIABLE, "2000")
    load(models.save(_naming(1, 1001, 0), tmp_path))


def test_sparse_tensors_are_written_out_within_one_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = models.conv_chain()
    for number in range(3):
        sparse = proto.graph.sparse_initializer.add(dims=[100])
        sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), f"thin{number}"))
        sparse.indices.CopyFrom(numpy_helper.from_array(np.zeros(1, np.int64), "places"))
    path = models.save(proto, tmp_path)
    monkeypatch.setattr(constants, "_LARGEST_SPARSE", 1000)
    with pytest.raises(InputFileError, match=r"'thin2' .* needs more than 200 bytes"):
        load(path)
    monkeypatch.setattr(constants, "_LARGEST_SPARSE", 1200)
    load(path)


def test_the_budget_is_an_option_of_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "1T")
    path = _saved(_in_function(), tmp_path)
    (path.parent / "secret.bin").write_bytes(_SECRET.tobytes())
    assert run(["lint", str(path), "--max-memory", "15"]) == 5
    assert "16 bytes, more than the 15 allowed" in capsys.readouterr().err
    assert budget() == 1 << 40
    assert run(["lint", str(path), "--max-memory", "much"]) == 2
    assert "'much' is not a memory size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "size"), [("8GiB", 8 << 30), ("500M", 500 << 20), ("1.5 g", 3 << 29), ("4096", 4096)]
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "8 apples", "1e9", "0.0001K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def _far_offset(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(_external(offset=1 << 70))


def _long_location(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(_external(location="x" * 5000))


def _long_folder(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(_external(location="x" * 300))


def _looping_link(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.append(_external(location="loop/a.bin"))


def _broken_string(proto: onnx.ModelProto) -> None:
    proto.graph.initializer.add(
        name="words", data_type=TensorProto.STRING, dims=[1], string_data=[b"\xff\xfe"]
    )


def _segment(proto: onnx.ModelProto) -> None:
    proto.graph.initializer[0].segment.begin = 0


def _reference(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].attribute[0].ref_attr_name = "kernel"


def _typeless_behind_unknown(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].op_type = "Unheard"
    proto.graph.node[0].attribute.add(name="odd")


def _undefined_constant(proto: onnx.ModelProto) -> None:
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["k"], value=onnx.TensorProto(dims=[2])))


def _misfit_constant(proto: onnx.ModelProto) -> None:
    tensor = onnx.TensorProto(dims=[7], data_type=TensorProto.FLOAT, float_data=[1.0])
    proto.graph.node.insert(0, helper.make_node("Constant", [], ["k"], value=tensor))


def _untyped_constant(proto: onnx.ModelProto) -> None:
    node = proto.graph.node.add(op_type="Constant", output=["k"])
    node.attribute.add(name="value_ints")


def _attribute_behind_unknown(proto: onnx.ModelProto) -> None:
    proto.graph.node[0].op_type = "Unheard"
    proto.graph.node[2].attribute[0].name = "kernel_shapf"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_far_offset, "'secret.bin', which is missing"),
        (_long_location, "5000 characters"),
        (_long_folder, "which is missing"),
        (_looping_link, "outside the model's folder"),
        (_broken_string, "'words' holds strings that are not UTF-8"),
        (_segment, "'conv1_w' is stored in segments"),
        (_reference, "refers to 'kernel' of a function"),
        (_typeless_behind_unknown, "Field 'type'"),
        (_undefined_constant, "element type number 0"),
        (_misfit_constant, "shape [7] but holds 1 of 7"),
        (_untyped_constant, "not valid ONNX"),
        (_attribute_behind_unknown, "kernel_shapf"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_what_contradicts_itself_is_refused_by_name(damage, words: str, tmp_path: Path, capsys) -> None:
    proto = models.conv_chain()
    damage(proto)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = models.save(proto, tmp_path)
    with pytest.raises(InputFileError) as caught:
        load(path)
    assert words in caught.value.what
    assert len(caught.value.what) < 400
    assert caught.value.where == str(path)
    assert run(["lint", str(path)]) == 5
    assert "mistake in qdqtool" not in capsys.readouterr().err


def test_an_offset_beyond_every_file_is_refused(tmp_path: Path) -> None:
    proto = models.conv_chain()
    proto.graph.initializer.append(_external(offset=1 << 70))
    (tmp_path / "secret.bin").write_bytes(_SECRET.tobytes())
    with pytest.raises(InputFileError, match="too short"):
        load(models.save(proto, tmp_path))
