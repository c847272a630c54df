"""Check whether an engine that is called INT8 computes in INT8."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qdqtool.auditing.noop import ExtraEvidence, really_int8
from qdqtool.cli.app import run
from qdqtool.cli.engine_files import list_missed
from qdqtool.core.engine import EngineTensor, Role
from qdqtool.core.findings import Indication, NoOpReport, NoOpVerdict
from qdqtool.core.tensors import DType
from qdqtool.engine.about import about, read_outputs, same_outputs
from qdqtool.errors import InputFileError
from tests import models
from tests.audit.graphs import GRAPHS
from tests.audit.scenes import engine, kernel
from tests.engine.records import CONV, dump

HALF = engine(kernel("a", precision=DType.FLOAT16), kernel("b", precision=DType.FLOAT16))
FULL = engine(kernel("a"), kernel("b"))


def points(report: NoOpReport) -> list[Indication]:
    return [sign.points for sign in report.signs]


def test_an_engine_without_compute_kernels_tells_nothing():
    assert really_int8(engine()).verdict is NoOpVerdict.UNKNOWN


@pytest.mark.parametrize(
    ("precisions", "verdict"),
    [
        ((DType.INT8, DType.INT8), NoOpVerdict.INT8),
        ((DType.INT8, DType.FLOAT16), NoOpVerdict.PARTLY),
        ((DType.FLOAT16, DType.FLOAT32), NoOpVerdict.NO_OP),
        ((DType.UNKNOWN, DType.FLOAT16), NoOpVerdict.UNKNOWN),
    ],
)
def test_the_kernels_decide(precisions: tuple[DType, ...], verdict: NoOpVerdict):
    layers = (kernel(f"k{index}", precision=precision) for index, precision in enumerate(precisions))
    assert really_int8(engine(*layers)).verdict is verdict


def test_a_renamed_float_engine_has_its_bytes():
    found = really_int8(HALF, HALF)
    assert (found.verdict, points(found)) == (NoOpVerdict.NO_OP, [Indication.NO_OP, Indication.NO_OP])


def test_equal_outputs_and_sizes_speak_for_a_float_engine_but_not_louder_than_kernels():
    besides = ExtraEvidence(plan_bytes=(1000, 1001), ms=(1.0, 1.01), outputs_equal=True)
    assert points(really_int8(engine(), besides=besides))[1:] == [Indication.NO_OP] * 3
    assert really_int8(engine(), besides=besides).verdict is NoOpVerdict.NO_OP
    assert really_int8(FULL, besides=besides).verdict is NoOpVerdict.INT8


def test_signs_that_disagree_leave_it_open():
    besides = ExtraEvidence(plan_bytes=(500, 1000), outputs_equal=True)
    assert really_int8(engine(), besides=besides).verdict is NoOpVerdict.UNKNOWN


def test_an_engine_that_is_int8_itself_is_no_yardstick():
    found = really_int8(FULL, FULL)
    assert found.verdict is NoOpVerdict.INT8
    assert points(found)[1:] == [Indication.NOTHING] * 2
    assert (
        "2 of 2 compute kernels of the float engine multiply in INT8: it is not a valid reference"
        in found.signs[1].text
    )


def test_fewer_bytes_by_fp16_do_not_speak_for_int8():
    single = engine(kernel("c", precision=DType.FLOAT32), kernel("d", precision=DType.FLOAT32))
    found = really_int8(HALF, single)
    assert (found.verdict, points(found)[1:]) == (NoOpVerdict.NO_OP, [Indication.NOTHING] * 2)


def test_a_model_that_rounds_says_nothing_of_its_engine():
    signs = {
        of: really_int8(engine(), besides=ExtraEvidence(outputs_equal=False, outputs_of=of)).signs[-1].points
        for of in ("engine", "model, both on onnxruntime")
    }
    assert list(signs.values()) == [Indication.INT8, Indication.NOTHING]


def test_a_run_folder_is_an_engine_too(tmp_path, capsys):
    (tmp_path / "layers.txt").write_text(dump(CONV))
    assert run(["engine", "is-int8", str(tmp_path)]) == 0
    (tmp_path / "layers.txt").write_text(dump(CONV.replace("Datatype: Int8", "Datatype: Half")))
    assert run(["engine", "is-int8", str(tmp_path)]) == 1
    assert "`qdqtool audit" in capsys.readouterr().err
    (tmp_path / "layers.txt").unlink()
    assert run(["engine", "is-int8", str(tmp_path)]) == 5
    assert "finished run folder" in capsys.readouterr().err


def test_outputs_are_compared_to_the_last_digit(tmp_path):
    for name, value in (("a", 0.1), ("b", 0.1), ("c", 0.2)):
        (tmp_path / f"{name}.json").write_text(
            json.dumps([{"name": "y", "dimensions": "1", "values": [value]}])
        )
    assert read_outputs(tmp_path / "a.json") == read_outputs(tmp_path / "b.json")
    assert read_outputs(tmp_path / "a.json") != read_outputs(tmp_path / "c.json")


def test_outputs_that_are_not_finite_are_read(tmp_path):
    """trtexec prints them as C++ does, which is no JSON."""
    values = {"a": "0.5, nan, -nan, -inf", "b": "0.5, nan, nan, -inf", "c": "0.5, nan, nan, inf"}
    for name, text in values.items():
        (tmp_path / f"{name}.json").write_text(
            f'[\n  {{ "name" : "a, nan"\n  , "dimensions" : "1x4"\n  , "values" : [ {text} ]\n  }}\n]\n'
        )
    assert same_outputs(tmp_path / "a.json", tmp_path / "b.json")
    assert not same_outputs(tmp_path / "a.json", tmp_path / "c.json")
    (fact,) = about(tmp_path / "a.json").facts
    assert (fact.name, fact.value) == ("a, nan", "4 values, 0.5 to 0.5, 3 not finite")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"name": 1, "values": 2}]', "[" * 5000])
def test_other_files_are_no_outputs(tmp_path, text: str):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputFileError, match="no outputs"):
        read_outputs(tmp_path / "x.json")


def test_the_command_fails_for_a_no_op_and_below_the_wanted_share(tmp_path, capsys):
    int8, half = tmp_path / "int8.txt", tmp_path / "half.txt"
    int8.write_text(dump(CONV))
    half.write_text(dump(CONV.replace("Datatype: Int8", "Datatype: Half")))
    both = tmp_path / "both.txt"
    both.write_text(
        dump(CONV, CONV.replace("Datatype: Int8", "Datatype: Half").replace("c1_myl0_1", "c2_myl0_2"))
    )
    assert run(["engine", "is-int8", str(int8), "--float", str(half)]) == 0
    assert capsys.readouterr().out.startswith("int8\n")
    assert run(["engine", "is-int8", str(half), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["data"]["verdict"] == "no-op"
    assert run(["engine", "is-int8", str(both)]) == 0
    assert run(["engine", "is-int8", str(both), "--min-share", "0.9"]) == 1
    assert "50% of the compute kernels" in capsys.readouterr().err


def test_the_command_wants_pairs_of_files_that_exist(tmp_path, capsys):
    int8 = tmp_path / "int8.txt"
    int8.write_text(dump(CONV))
    assert run(["engine", "is-int8", str(int8), "--plan", str(int8)]) == 2
    assert run(["engine", "is-int8", str(int8), "--plan", str(int8), "--plan", "missing"]) == 5
    assert "fix:" in capsys.readouterr().err


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict]:
    capsys.readouterr()
    code = run(["engine", "is-int8", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)["data"]


@pytest.mark.rtx
def test_a_model_alone_is_built_as_it_is_and_in_float(tmp_path, capsys):
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    code, found = told(capsys, str(models.save(GRAPHS["fine"](), tmp_path)))
    assert (code, found["verdict"], found["int8"], found["compute"]) == (0, "int8", 3, 3)
    texts = [sign["text"] for sign in found["signs"]]
    assert any(text.startswith("bytes of the plan file") for text in texts)
    assert "outputs differ from those of the float model, both on onnxruntime" in texts
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.rtx
def test_a_model_whose_quantization_got_lost_is_a_no_op(tmp_path, capsys):
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    lost = models.save(models.conv_chain(), tmp_path)
    code, found = told(capsys, str(lost))
    assert (code, found["verdict"]) == (1, "no-op")
    assert {sign["points"] for sign in found["signs"]} == {"no-op"}
    assert told(capsys, str(lost), "--float", str(lost)) == (code, found)


@pytest.mark.rtx
def test_a_model_that_runs_half_in_int8_misses_a_higher_share(tmp_path, capsys):
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    model = str(models.save(GRAPHS["float_weight"](), tmp_path))
    assert told(capsys, model)[0] == 0
    code, found = told(capsys, model, "--min-share", "0.99")
    assert (code, found["verdict"]) == (1, "partly int8")


def test_a_model_and_files_of_an_engine_are_one_too_many(tmp_path, capsys):
    model = str(models.save(models.conv_chain(), tmp_path))
    assert run(["engine", "is-int8", model, "--plan", "a", "--plan", "b"]) == 2
    assert "remove --plan" in capsys.readouterr().err


def test_an_engine_of_another_small_format_is_neither_int8_nor_float():
    small = engine(kernel("a", precision=DType.FLOAT8), kernel("b", precision=DType.FLOAT4))
    found = really_int8(small, HALF)
    assert found.verdict is NoOpVerdict.OTHER
    assert found.others == {"fp8": 1, "nvfp4": 1}
    assert found.signs[0].text == "0 of 2 compute kernels multiply in INT8, 1 in FP8, 1 in NVFP4"
    assert list_missed(found, 0.0) == [
        "this engine is not INT8: 1 in FP8 and 1 in NVFP4, of 2 compute kernels"
    ]
    assert (
        "1 of 2 compute kernels of the float engine multiply in FP8" in really_int8(HALF, small).signs[1].text
    )


@pytest.mark.parametrize("word", ["int4", "int8"])
def test_a_kernel_that_reads_stored_weights_is_not_float_either(word):
    weight = EngineTensor(name="w", shape=(64, 64), dtype=DType.parse(word))
    scales = EngineTensor(name="s", shape=(64,), dtype=DType.INT8)
    held, bare = (
        replace(kernel("a", precision=DType.FLOAT16), constants=constants)
        for constants in ((scales, weight), (scales,))
    )
    found = really_int8(engine(held, bare))
    assert (found.verdict, found.others) == (NoOpVerdict.OTHER, {f"{word}-weights": 1})
    assert list_missed(found, 0.0) == [
        f"this engine is not INT8: 1 with {word.upper()} weights, of 2 compute kernels"
    ]
    assert really_int8(engine(bare, bare)).verdict is NoOpVerdict.NO_OP


def test_a_generated_kernel_of_one_row_that_reads_stored_weights_computes():
    weight = EngineTensor(name="w", shape=(64, 64), dtype=DType.INT4)
    named = [
        replace(kernel(name, precision=DType.FLOAT16, role=Role.OTHER), constants=(weight,))
        for name in ("__myl_CastMulCastReshMulSum_myl0_1", "__myl_CastMulCast_myl0_0")
    ]
    found = really_int8(engine(*named))
    assert (found.verdict, found.compute, found.others) == (NoOpVerdict.OTHER, 1, {"int4-weights": 1})
