"""A log answers first: did it build, in which precision, why not INT8, and what to do."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from qdqtool import buildlog
from qdqtool.backends.building.failures import refusal
from qdqtool.buildlog.answer import RunEvidence, answer, sentence
from qdqtool.cli.app import run
from qdqtool.core.buildlog import LogRun, RunHeader
from qdqtool.core.causes import OWN_BUILD, Situation
from qdqtool.core.events import ComputeNode
from qdqtool.core.wording import Command, Setting, actions
from qdqtool.trt.causes import CAUSES, by_name, diagnosis
from qdqtool.trt.causes.anatomy import in_situation
from tests.buildlog import small
from tests.shared import shared
from tests.trt.test_causes import SAID

_T = "[11/26/2025-05:52:00] [TRT]"
_RUNNER = f"{_T} [V] --------------- Timing Runner: {{}} (CaskConvolution[0x80000028])\n"
_SHORT = (
    f"{_T} [W] Tactic Device request: 143MB Available: 112MB. Device memory is insufficient to use tactic.\n"
)
_NONE = f"{_T} [E] IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for node {{}}.)\n"


_ONNX = frozenset({"parser"})
"""Areas of causes that only a build from an ONNX file has."""


def read(text: str) -> LogRun:
    (found,) = buildlog.read(io.BytesIO(text.encode())).runs
    return found


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "built", "precision", "words", "evidence"),
    [
        ("ds_int8_none", True, "fp16", "without a calibration file", (4, 6)),
        ("nvrtc_thor", False, "", "NVRTC compilation failure", (3, 4)),
        ("edgellm_parse", False, "", "the second scale of NVFP4", (1,)),
        ("t4_86_polygraphy", False, "", "node unet.cond.weight", (13,)),
    ],
)
def test_a_handed_log_is_answered(
    name: str, built: bool, precision: str, words: str, evidence: tuple[int, ...]
) -> None:
    (found,) = buildlog.read(shared(f"cases/handed/{name}.log")).runs
    told = found.answer
    assert told is not None
    assert (told.built, told.precision, told.evidence) == (built, precision, evidence)
    assert words in told.why_not
    assert told.fix


@pytest.mark.shared
def test_a_handed_reason_is_printed_whole(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["parse", str(shared("cases/handed/edgellm_parse.log"))]) == 0
    said = capfd.readouterr().out
    assert said.count("Assertion failed: Scale input must be a scalar") == 2
    assert "In node 1042 with name" in said


@pytest.mark.shared
def test_extra_verbose_lines_of_polygraphy_are_no_errors() -> None:
    (found,) = buildlog.read(shared("cases/handed/t4_86_polygraphy.log")).runs
    assert [record.line for record in found.errors] == [13, 14]
    assert [row.verdict.partition(" ")[2] for row in found.tactics] == ["has no kernel for these formats"] * 4


@pytest.mark.shared
def test_a_run_that_enqueues_as_long_as_it_computes_is_not_called_bound_by_the_gpu() -> None:
    (found,) = buildlog.read(shared("cases/handed/qwen_bf16.log")).runs
    assert found.performance is not None
    assert "bound by GPU compute" not in found.performance.diagnosis[0]
    assert "--useCudaGraph" in found.performance.diagnosis[0]


@pytest.mark.shared
def test_a_workspace_of_a_kilobyte_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    log = shared(
        "corpus/verbose_log/NVIDIA__trt-samples-for-hackathon-cn__cookbook__07-Tool__trtexec__result-02.log.v2.xz"
    )
    assert run(["parse", str(log)]) == 0
    out = capfd.readouterr().out
    assert "the largest asked for 206,080 bytes, and the limit was 1,024 bytes" in out
    assert "fix: --memPoolSize=workspace:1024 (a number of MiB" in out


def test_memory_that_was_short_for_the_layer_that_failed_decides() -> None:
    failure = read(_RUNNER.format("a") + _SHORT + _NONE.format("a")).failure
    assert failure is not None
    assert (failure.cause, failure.node, failure.evidence) == ("device-memory", "a", (2, 3))


def test_memory_that_was_short_for_another_layer_decides_nothing() -> None:
    failure = read(_RUNNER.format("a") + _SHORT + _RUNNER.format("b") + _NONE.format("b")).failure
    assert failure is not None
    assert (failure.cause, failure.evidence) == ("no-kernel", (4,))


def test_a_compiler_that_failed_for_another_layer_decides_nothing() -> None:
    crash = f"{_T} [E] Error[9]: Skipping tactic 0x0 due to exception nvrtc_compile.cpp:1: CHECK(x) failed. NVRTC Compilation failure\n"
    failure = read(_RUNNER.format("a") + crash + _RUNNER.format("b") + _NONE.format("b")).failure
    assert failure is not None
    assert failure.cause == "no-kernel"
    failure = read(_RUNNER.format("a") + crash + _NONE.format("a")).failure
    assert failure is not None
    assert failure.cause == "nvrtc"


def test_the_reason_in_a_line_without_a_prefix_decides() -> None:
    text = (
        f"{_T} [E] ModelImporter.cpp:726: ERROR: builtin_op_importers.cpp:4643 In function importFallbackPluginImporter:\n"
        '[8] Assertion failed: creator && "Plugin not found, are the plugin name, version, and namespace correct?"\n'
        f"{_T} [E] Failed to parse onnx file\n"
    )
    failure = read(text).failure
    assert failure is not None
    assert (failure.cause, failure.line) == ("plugin-missing", 2)


@pytest.mark.parametrize(
    ("line", "precision", "words"),
    [
        ("WARNING: INT8 not supported by platform. Trying FP16 mode.", "fp16", "no fast INT8"),
        (
            "WARNING: ../nvdsinfer/nvdsinfer_model_builder.cpp:1208 INT8 calibration file not specified. Trying FP16 mode.",
            "fp16",
            "DeepStream",
        ),
        (
            "Falling back to ['CUDAExecutionProvider', 'CPUExecutionProvider'] and retrying.",
            "",
            "onnxruntime",
        ),
        (
            "[TRT] requested fasted precision for device DLA_0 without providing valid calibrator, disabling INT8",
            "",
            "jetson-inference",
        ),
    ],
)
def test_what_an_application_decides_is_read(line: str, precision: str, words: str, tmp_path: Path) -> None:
    found = read(line + "\n")
    assert found.answer is not None
    assert (found.answer.precision, found.answer.evidence) == (precision, (1,))
    assert words in found.answer.why_not
    log = tmp_path / "host.log"
    log.write_text(line + "\n", "utf-8")
    assert run(["parse", str(log)]) == 0


def test_text_and_json_hold_the_same_of_a_run() -> None:
    """Nothing that both print is worked out in one of them alone."""
    source = (small.trtexec() + _SHORT).encode()
    (whole,) = buildlog.read(io.BytesIO(source)).runs
    (digest,) = buildlog.digests(buildlog.TextSource(io.BytesIO(source)))
    for name in RunHeader.__dataclass_fields__:
        if name != "clipped":
            assert getattr(whole, name) == getattr(digest, name), name


def test_the_json_holds_what_the_text_shows_of_int8(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "a.log"
    log.write_text(
        f"{_T} [V] Rejecting some int8 implementation of layer Conv_32 due to missing int8 scales for tensor 93 at input index 0\n"
        f"{_T} [W] Missing scale and zero-point for tensor 93, expect fall back to non-int8 implementation for any layer "
        "consuming or producing given tensor\n"
    )
    assert run(["parse", str(log), "--json"]) == 0
    (found,) = json.loads(capfd.readouterr().out)["data"]["runs"]
    assert found["int8_refused"] == {"Conv_32": "93"}
    assert found["without_scale"] == {"93": []}
    assert "without a scale" in found["answer"]["why_not"]
    assert found["answer"]["evidence"] == [2]


@pytest.mark.parametrize(
    "text",
    [
        "IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find any implementation for node a.)",
        (
            "Skipping tactic 0x0 due to exception nvrtc_compile.cpp:940: CHECK(false) failed. NVRTC Compilation failure\n"
            "Could not find any implementation for node a."
        ),
        "Engine set up failed",
    ],
)
def test_explain_answers_an_error_text(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", text, "--json"]) == 0
    cause = json.loads(capfd.readouterr().out)["data"]["cause"]
    assert cause["meaning"]
    assert cause["fix"]


@pytest.mark.parametrize(
    "prefix",
    [
        "[08/10/2023-11:27:27] [E] [TRT] ",
        "[08/10/2023-11:27:27] [TRT] [E] ",
        "[TRT] [E] ",
        "[E] ",
        "[TensorRT] ERROR: ",
        "ERROR: [TRT]: ",
        "TensorRT ERROR ",
    ],
)
def test_a_known_error_is_the_answer_whoever_prints_it(prefix: str) -> None:
    for text, name in SAID.items():
        cause = by_name(name)
        if cause.effect == "fails" and cause.rank in ("exact", "general"):
            found = read(f"{prefix}{text}\n")
            assert found.failure is not None, text
            assert found.failure.cause == name
            assert buildlog.is_of_builder(found)


_STEP = f"{_T} [I] [MemUsageChange] Init CUDA: CPU +9, GPU +0, now: CPU 9, GPU 9 (MiB)\n"
_BUILT = f"{_T} [I] Engine generation completed in 6.9 seconds.\n"
_CHECK = "[x.cpp::f::1] Error Code 2: Internal Error (Assertion zork != 3 failed. few zorks)"


def test_many_lines_with_a_word_of_trouble_do_not_hide_an_error() -> None:
    noise = "".join(f"epoch {number}: validation error 0.{number}\n" for number in range(500))
    raised = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    run = read(f"{_STEP}{noise}{raised}")
    assert run.failure is not None
    assert (run.failure.cause, run.failure.line) == ("out-of-memory", 502)


@pytest.mark.parametrize("text", SAID)
def test_a_line_is_not_the_reason_of_what_it_did_not_stop(text: str) -> None:
    cause = by_name(SAID[text])
    finished = read(f"{_T} [E] {text}\n{_BUILT}").answer
    assert finished is not None
    assert (finished.built, finished.failed) == (True, False)
    if cause.area != "host" or "ERROR" in text:
        return
    stopped = read(f"{text}\n{_STEP}{_T} [E] {_CHECK}\n").answer
    assert stopped is not None
    assert "few zorks" in stopped.why_not
    assert stopped.degree == "general"


@pytest.mark.parametrize(
    "prefix",
    [
        "INFO:zork.utils:",
        "2024-01-02 10:00:00,123 - zork - INFO - ",
        "[INFO] [zork-1]: ",
        "[2024-01-02 10:00:00.123] [info] ",
        "I0110 21:30:54.920681 60 zork.cc:592] ",
        "DEBUG: ",
        "0:00:02.666741042 13265 0x55aeb942c120 WARN                 zork zork.cpp:679:log:<a> ",
        "2024-01-02 10:00:00.123: W tensorflow/zork.cc:1] ",
    ],
)
def test_a_message_of_a_program_is_no_failure(prefix: str) -> None:
    for text, name in SAID.items():
        if by_name(name).area == "host" and "\n" not in text and "ERROR" not in text:
            answered = read(f"{prefix}{text}\n").answer
            assert answered is None or not answered.failed, text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[TensorRT-LLM][ERROR] Assertion failed: Do not zork the quib (/a/b.cpp:280)\n",
            "TensorRT-LLM reports an error: Do not zork the quib",
        ),
        (
            f"{_T} [E] 3: [x.cpp::f::1] Error Code 3: API Usage Error (Parameter check failed at: x.cpp::f::1, condition: a != 0\n{_STEP}",
            "`a != 0` is not true; the text does not say the reason; the builder continued after this line",
        ),
        (
            f"ERROR: ModelImporter.cpp:92 In function parseGraph:\n[8] Assertion failed: zork(a, b)\n{_T} [E] Network must have at least one output\n",
            "`zork(a, b)` is not true",
        ),
        (
            f"{_T} [E] Calibration failure occurred with no scaling factors detected.\n{_T} [E] a.cpp (1) - cuBLAS Error in initializeCommonContext: 3\n",
            "CUDA, cuDNN or cuBLAS did not start",
        ),
        (
            "[TRT]    failed to retrieve the zork\nSegmentation fault (core dumped)\n",
            "before it the log has, in line 1: failed to retrieve the zork",
        ),
        (
            f"{_T} [E] few zorks\n{_T} [E] INVALID_CONFIG: Deserialize the cuda engine failed.\n",
            "before it the log has, in line 1: few zorks",
        ),
        (
            'Traceback (most recent call last):\n  File "/a/site-packages/zork/b.py", line 1, in f\n    g()\nRuntimeError: few quibs\n',
            "RuntimeError: few quibs; the package zork raised it",
        ),
        (
            f"{_T} [W] Requested amount of GPU memory (7000000000 bytes) could not be allocated.\n{_T} [E] Error Code 1: Cuda Runtime (out of memory)\n{_NONE.format('a')}",
            "node a: the builder ran out of memory; the builder asked for 7 GB at once",
        ),
    ],
)
def test_what_the_log_has_beside_the_error_is_in_the_answer(text: str, words: str) -> None:
    answered = read(text).answer
    assert answered is not None
    assert words in answered.why_not


_FAILED_CALIBRATION = f"{_T} [E] Calibration failure occurred with no scaling factors detected.\n"


@pytest.mark.parametrize(
    "program", ["", "[03/11/2024-16:45:10] [TRT-LLM] [I] Set strongly_typed to False.\n"]
)
def test_a_calibration_without_a_calibrator_says_so(program: str) -> None:
    warned = read(f"{program}{_UNCALIBRATED}{_FAILED_CALIBRATION}").answer
    alone = read(f"{program}{_FAILED_CALIBRATION}").answer
    assert warned is not None
    assert alone is not None
    assert (warned.built, warned.degree, alone.degree) == (False, "exact", "general")
    assert "without a calibrator" in warned.why_not
    assert ("--calib" in warned.fix) is not bool(program)


def test_an_operator_that_onnxruntime_gives_to_another_provider_stops_no_build() -> None:
    line = "[E:onnxruntime:Default, provider.h:51 log] [2021-05-25 09:13:26   ERROR] INVALID_ARGUMENT: getPluginCreator could not find plugin Zork version 1\n"
    answered = read(line).answer
    assert answered is not None
    assert answered.built is None
    assert "next provider" in answered.why_not


@pytest.mark.parametrize(
    "end",
    ["", f"{_T} [W] Layer '/a' (CONSTANT): Unsupported on DLA. Switching this layer's device type to GPU.\n"],
)
def test_options_settle_why_no_layer_is_int8_without_the_end_of_the_log(end: str) -> None:
    options = _ALLOWED.format("--fp16 --useDLACore=0")
    answered = read(options + _STEP + end).answer
    assert answered is not None
    assert (answered.built, answered.quantized) == (None, "INT8")
    assert answered.why_not.startswith("INT8 was not requested (precision FP32+FP16)")
    assert ("DLA refuses" in answered.why_not) is bool(end)


def test_layers_that_multiply_nothing_do_not_show_the_types_of_those_that_do() -> None:
    layer = "Layer(ElementWise): a, Tactic: 0x0000000000000001, x[{0}(8,4)], z[{0}(8,4)] -> y[{0}(8,4)]\n"
    answered = read(layer.format("Float")).answer
    assert answered is not None
    assert "write 1 fp32, and no layer here is a convolution" in answered.why_not
    assert (
        "no layer here"
        not in (
            read(layer.format("Int8").replace("ElementWise", "CaskConvolution")).answer or answered
        ).why_not
    )


def test_a_failure_of_a_finished_engine_is_not_hidden_by_the_build() -> None:
    crash = "[TRT] [E] IExecutionContext::enqueueV3: Error Code 1: Myelin (CUDA error 700 launching __myl_Mul kernel.)\n"
    answered = read(f"{_BUILT}{crash}").answer
    assert answered is not None
    assert sentence(answered).startswith("built; failed: a kernel of the engine failed at run time")


@pytest.mark.parametrize(
    "line",
    [
        "Missing scale and zero-point for tensor t, expect fall back to non-int8 implementation for any layer consuming or producing given tensor",
        "No implementation of layer zork obeys the requested constraints in strict mode. No conforming implementation was found i.e. zork",
        "Layer '/a' (CONSTANT): Unsupported on DLA. Switching this layer's device type to GPU.",
    ],
)
def test_a_log_without_an_end_does_not_say_why(line: str) -> None:
    answered = read(f"{_T} [W] {line}\n").answer
    assert answered is not None
    assert (answered.built, answered.about) == (None, "log")
    assert "does not show how the build ended" in sentence(answered)
    assert "why not" not in sentence(answered)
    assert answered.fix.startswith("pass the whole log")


@pytest.mark.parametrize(
    ("printed", "precision"),
    [
        ("FP32+INT8", "FP32+INT8 allowed"),
        ("FP32+INT8 (obey precision constraints)", "FP32+INT8 allowed"),
        ("FP32+FP16+INT8 (prefer precision constraints)", "FP32+FP16+INT8 allowed"),
        ("Strongly Typed", ""),
    ],
)
def test_types_are_read_however_trtexec_prints_them(printed: str, precision: str) -> None:
    options = f"{_T} [I] === Build Options ===\n{_T} [I] Precision: {printed}\n"
    answered = read(
        f"&&&& RUNNING TensorRT.trtexec # trtexec --onnx=a.onnx\n{options}{_STEP}{_PASSED}"
    ).answer
    assert answered is not None
    assert answered.precision == precision
    assert "not requested" not in answered.why_not


@pytest.mark.parametrize(
    ("flags", "label"),
    [("--fp8 --fp16", "why not FP8"), ("--int8", "why not INT8"), ("--fp16", "why not INT8")],
)
def test_the_reason_is_of_the_format_that_was_asked_for(flags: str, label: str) -> None:
    refused = f"{_T} [W] No implementation of layer zork obeys the requested constraints in strict mode. No conforming implementation was found i.e. a.\n"
    answered = read(f"{_ALLOWED.format(flags)}{refused}{_PASSED}").answer
    assert answered is not None
    assert label in sentence(answered)


def test_a_build_whose_strategies_all_failed_names_the_node_and_the_kernels_left_out() -> None:
    answered = read(
        f"{_T} [E] Error[9]: Skipping tactic 0x1 due to exception Assertion zork == 1 failed. few zorks\n"
        "[11/26/2025-05:52:00] [W] [TRT] Engine generation failed with backend strategy 2.\n"
        "Error message: [x.cpp::f::4] Error Code 10: Internal Error (Could not find any implementation for node /a/Conv.).\n"
        "Skipping this backend strategy.\n"
        f"{_T} [E] Error[2]: [x.cpp::f::1] Error Code 2: Internal Error (Engine generation failed because all backend strategies failed.)\n"
    ).answer
    assert answered is not None
    assert answered.why_not.startswith("node /a/Conv: no kernel")
    assert "few zorks" in answered.why_not
    assert answered.evidence == (3, 1)


@pytest.mark.parametrize(
    "text",
    [
        *SAID,
        *(
            f"Error Code {code}: Internal Error (Assertion a.zork == 3 failed. few zorks)"
            for code in range(2, 11)
        ),
        "the zork failed",
    ],
)
def test_every_command_gives_an_error_text_the_same_cause(
    text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    found = diagnosis([text])
    assert found is not None
    cause = found[1]
    assert run(["explain", text, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["data"]["cause"]["meaning"] == cause.meaning
    if cause.effect != "fails" or cause.rank in ("unknown", "echo"):
        return
    told = read(f"{_T} [E] {text}\n").failure
    assert told is not None
    assert (told.cause, told.meaning, told.fix) == (cause.name, cause.meaning, cause.fix)
    refused = refusal([], [text], where="m.onnx", log="build.log")
    own = diagnosis([text], Situation(program=OWN_BUILD))
    assert own is not None
    assert own[1].meaning in refused.what
    assert own[1].fix in (refused.fix or "")


def test_no_fix_names_a_command_that_the_program_of_the_log_cannot_run() -> None:
    onnx = (str(Command("build", ("MODEL",)))[:-1], "trtexec --onnx", "place.")
    for cause in CAUSES:
        fix = in_situation(cause, "", Situation(program="tensorrt-llm")).fix
        assert not [word for word in onnx if word in fix] or cause.area in _ONNX, (cause.name, fix)


@pytest.mark.parametrize(
    ("lines", "meaning", "fix"),
    [
        pytest.param(
            f"{_T} [E] Error[10]: Could not find any implementation for node /model.23/ZorkNMS_TRT.\n",
            "cannot run this plug-in",
            "supportsFormatCombination",
            id="plug-in",
        ),
        pytest.param(
            f"{_T} [E] 10: Could not find any implementation for node {{ForeignNode[a...b]}}.\n[11/26/2025-05:52:00] [TRT-LLM] [E] Engine building failed\n",
            "no kernel for this node",
            "--gemm_plugin",
            id="program",
        ),
        pytest.param(
            "&&&& RUNNING TensorRT.trtexec [TensorRT v101200] # trtexec --onnx=m.onnx --fp16\n"
            + _NONE.format("Conv_1"),
            "in the types of this build",
            "workspace",
            id="float build",
        ),
        pytest.param(
            "&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --onnx=m.onnx --int8\n"
            + _NONE.format("Conv_1"),
            "requested precision",
            "allow FP16 too",
            id="INT8 alone",
        ),
        pytest.param(
            "&&&& RUNNING TensorRT.trtexec [TensorRT v101200] # trtexec --onnx=m.onnx --fp16\n"
            + _NONE.format("Conv_1.weight + QuantizeLinear_3 + Conv_1"),
            "requested precision",
            "exclude",
            id="Q/DQ",
        ),
    ],
)
def test_the_situation_chooses_the_fix(lines: str, meaning: str, fix: str) -> None:
    told = read(lines).answer
    assert told is not None
    assert meaning in told.why_not
    assert fix in told.fix


_STAMP = "[11/28/2026-10:00:00] [TRT] [I] "
_PARSED = (f"{_STAMP}Input filename:   model.onnx\n", f"{_STAMP}Opset version:    17\n")
_BUILT = f"{_STAMP}Engine generation completed in 12.3 seconds.\n"


@pytest.mark.parametrize("size", ["12 MiB", "597 MB"])
@pytest.mark.parametrize("parsed", [(), _PARSED], ids=["only loads", "parses first"])
def test_a_program_that_loads_its_engine_is_told_how_to_log_the_build(
    parsed: tuple[str, ...], size: str
) -> None:
    loading = f"{_STAMP}Loaded engine size: {size}\n"
    found, after_build = (read("".join((*parsed, *built, loading))).answer for built in ((), (_BUILT,)))
    assert found is not None
    assert after_build is not None
    assert (found.built, after_build.built) == (None, True)
    assert "loads an engine that was built earlier" in found.why_not
    assert "loads an engine" not in after_build.why_not
    assert "--onnx=FILE --verbose" in found.fix


@pytest.mark.parametrize("severity", ["WARNING", "ERROR"])
def test_a_missing_engine_file_is_no_failure(severity: str) -> None:
    text = f"{severity}: ../model_builder.cpp:1152 Deserialize engine failed because file path: /a/b_int8.engine open error\n"
    told = read(text)
    assert told.failure is None
    assert told.answer is not None
    assert sentence(told.answer).startswith(
        "the log shows no finished build; DeepStream found no engine file"
    )
    assert told.answer.evidence == (1,)


def test_an_engine_that_only_collects_ranges_is_not_the_result() -> None:
    text = (
        "[TensorRT] VERBOSE: Engine generation completed in 3.27319 seconds.\n[TensorRT] VERBOSE: Calculating Maxima\n"
        "[TensorRT] ERROR: ../rtSafe/safeRuntime.cpp (25) - Cuda Error in allocate: 2 (out of memory)\n"
    )
    told = read(text).answer
    assert told is not None
    assert (told.built, told.why_not) == (False, by_name("out-of-memory").meaning)
    told = read(f"{text}[TensorRT] VERBOSE: Engine generation completed in 9.1 seconds.\n").answer
    assert told is not None
    assert told.built is True


@pytest.mark.parametrize(("copies", "said"), [(3.0, True), (0.1, False)])
def test_copies_that_take_much_of_the_time_are_the_answer(copies: float, said: bool) -> None:
    stamp = "[07/31/2021-01:54:24] [I]"
    text = (
        f"{stamp} === Profile (137 iterations ) ===\n{stamp}    Layer   Time (ms)   Avg. Time (ms)   Time %\n"
        f"{stamp}    Reformatting CopyNode for Input Tensor 0 to Conv_0       58.18           {copies}      6.6\n"
        f"{stamp}    Conv_0       49.20           7.0      5.6\n"
    )
    told = read(text).answer
    assert told is not None
    assert ("copies between types and layouts take 30%" in told.why_not) == said


@pytest.mark.parametrize(
    "text",
    [
        "In node 1 (parseGraph): UNSUPPORTED_NODE: No importer registered for op: QLinearConv\n",
        'While parsing node number 12 [X -> "238"]:\n[8] Assertion failed: creator && "Plugin not found, are they correct?"\n',
        "Assertion failed: tensors.count(input_name)\n[TensorRT] ERROR: Network must have at least one output\n",
        (
            f"{_T} [E] ModelImporter.cpp:754: ERROR: ModelImporter.cpp:179 In function parseGraph:\n[6] Invalid Node - /a/Pad\n"
            "[shuffleNode.cpp::symbolicExecute::391] Error Code 4: Internal Error (/a/Reshape_1: IShuffleLayer applied to shape tensor "
            "must have 0 or 1 reshape dimensions: dimensions were [-1,2])\n"
        ),
        "Could not open file a.onnx\n[E] [TRT] Network must have at least one output\n",
    ],
)
def test_an_error_of_the_parser_decides_without_a_severity(text: str) -> None:
    found = read(text)
    assert found.failure is not None
    assert by_name(found.failure.cause).rank == "exact"
    assert found.status == "failed"


def test_the_advice_for_a_wrong_file_does_not_name_the_command_that_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "other.log"
    log.write_text("[V] [other] hello\n")
    assert run(["parse", str(log)]) == 5
    assert "qdqtool parse" not in capfd.readouterr().err


_COSTS = (
    "[04/27/2026-18:38:45] [V] [TRT] =============== Computing costs for /a/Conv\n"
    "[04/27/2026-18:38:45] [V] [TRT] *************** Autotuning format combination: Float((MUL_ADD 5 E1 7),E0,1) where E0=(+ E1 (VALUE /a/Max_output_0)) "
    "-> Float((* 5 E0),1) where E0=(+ 1 (VALUE /a/Max_output_0)) ***************\n"
    "[04/27/2026-18:38:45] [E] Error[2]: [b.cpp::create::2] Error Code 2: Internal Error (Assertion isZork(a) failed. few zorks)\n"
)
_UNSCALED = "Missing scale and zero-point for tensor t, expect fall back to non-int8 implementation for any layer consuming or producing given tensor\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # The last line of a log without an end is an error of another program: it is not passed over for a warning.
        (
            f"[09/09/2026-10:00:00] [TRT] [W] {_UNSCALED}part.zork: error: no zork left\n",
            "failed: the cause of this text is unknown",
        ),
        # A message of another program that is wrapped over several lines is one message.
        (
            (
                "[15:34:05.628] [INFO] [TensorRT] [MemUsageChange] Init CUDA: CPU +19, GPU +0, now: CPU 25, GPU 88 (MiB)\n"
                "[ERROR] IBuilder::buildSerializedNetwork: Error Code 1: Internal Error\n(No zork for quib. In zorks\nat zork.cpp:9)\n"
                "[ERROR] [builderUtils.cpp:313:buildAndSerializeEngine] Failed to build serialized engine\n"
            ),
            "No zork for quib",
        ),
        # An error of Torch-TensorRT's own logger decides, not the exception that follows from it.
        (
            "ERROR: [Torch-TensorRT] - Unsupported operator: aten::zork(Tensor a) -> (Tensor)\nTraceback (most recent call last):\nRuntimeError: zork\n",
            "has no converter for an operator",
        ),
        # A message with a sentence of its own is not blamed on an earlier line of another program.
        (
            "[09/09/2026-10:00:00] [TRT] [I] a\nUnable to import a part\nRuntimeError: few zorks\n",
            "RuntimeError: few zorks",
        ),
        ("ERROR: [Torch-TensorRT] - the zork of a b\n", "the zork of a b"),
        (
            f"[09/09/2026-10:00:00] [I] [TRT] Calibration completed in 4.4 seconds.\n{_UNSCALED}Engine saved to a.trt\n",
            "built; INT8 allowed; why not INT8: 1 tensor (t) without a scale after the calibration",
        ),
        (
            _UNSCALED + "Engine saved to a.trt\n",
            "built; why not INT8: 1 tensor (t) without a scale: the layers",
        ),
        (
            _COSTS,
            (
                "timed last before it is /a/Conv; the builder tried only these types: Float -> Float; the shapes of the layer depend on values that the "
                "model computes (/a/Max_output_0)"
            ),
        ),
        (
            "&&&& RUNNING TensorRT.trtexec [TensorRT v8600] # trtexec --loadEngine=b_fp16.engine --int8\n&&&& PASSED TensorRT.trtexec\n",
            "fp16; the run loads a finished engine (b_fp16.engine)",
        ),
        (
            (
                "&&&& RUNNING TensorRT.trtexec [TensorRT v8600] # trtexec --onnx=a --fp16\n[09/09/2026-10:00:00] [I] === Device Information ===\n"
                "[09/09/2026-10:00:00] [I] Compute Capability: 5.3\n&&&& PASSED TensorRT.trtexec\n"
            ),
            "this GPU has no fast INT8",
        ),
        (
            "[09/09/2026-10:00:00] [I] [TRT] Local timing cache in use. Profiling results in this builder pass will not be stored.\n",
            "does not show how the build ended",
        ),
    ],
)
def test_a_log_is_answered_by_its_own_lines_or_said_to_lack_the_answer(text: str, words: str) -> None:
    told = read(text).answer
    assert told is not None
    assert words in sentence(told)
    assert told.fix


def test_an_error_before_a_claim_of_success_is_believed() -> None:
    told = read(
        "[09/09/2026-10:00:00] [E] [TRT] 1: Unexpected exception zork\nBuild engine successfully!\n"
    ).answer
    assert told is not None
    assert told.built is not True


@pytest.mark.parametrize(
    ("text", "built", "words"),
    [
        (
            "&&&& RUNNING TensorRT.trtexec [TensorRT v8600] # trtexec --loadEngine=a.plan\n&&&& PASSED TensorRT.trtexec\n",
            None,
            "the log shows no finished build",
        ),
        (
            "&&&& RUNNING TensorRT.trtexec [TensorRT v8600] # trtexec --onnx=a\n&&&& PASSED TensorRT.trtexec\n",
            True,
            "built",
        ),
        (
            (
                "[E] The engine plan file is not compatible with this version of TensorRT, expecting library version 8.2.4 got 8.2.3, "
                "please rebuild.\n"
            ),
            None,
            "the log shows no finished build; failed: the engine was built by another release",
        ),
        ("[E] [TRT] Network must have at least one output\n", False, "not built: the network is empty"),
        (
            "[E] [TRT] IExecutionContext::enqueueV3: Error Code 1: Myelin (CUDA error 700 launching __myl_Mul kernel.)\n",
            True,
            "built; failed: a kernel of the engine failed at run time",
        ),
    ],
)
def test_nothing_is_called_built_that_was_not(text: str, built: bool | None, words: str) -> None:
    told = read(text).answer
    assert told is not None
    assert told.built is built
    assert sentence(told).startswith(words)


_INFERENCE = f"""{_T} [E] Error Code: 9: Skipping tactic 0x0000000000000000 due to exception [shape.cpp:~op_constraints_msg_streamer_t:136]
Error during shape inference of

/a/scale_out = mul(x', w), name=/a/scale
Error is:

Input 0's element type (int8) differs from input 1's element type (
"""
_ALLOWED = "&&&& RUNNING TensorRT.trtexec [TensorRT v8510] # trtexec --onnx=a.onnx {}\n"
_FORMATS = f"{_T} [E] Error[9]: [pluginV2Builder.cpp::f::23] Error Code 9: Internal Error (/Z_TRT: could not find any supported formats consistent with input)\n"
_UNCALIBRATED = f"{_T} [W] Calibrator is not being used. Users must provide dynamic range for all tensors that are not Int32 or Bool.\n"
_DIED = 'trtexec: /root/myelin/src/graph.cpp:1059: Assertion `0 && "Unsupported type"\' failed.\n'
_PASSED = "&&&& PASSED TensorRT.trtexec [TensorRT v8510] # trtexec\n"
_CALIBRATED = f"{_T} [I] Calibration completed in 6.2236 seconds.\n"
_UNSCALED = f"{_T} [W] Missing scale and zero-point for tensor ids, expect fall back to non-int8 implementation for any layer consuming or producing given tensor\n"


@pytest.mark.parametrize(
    ("text", "why", "fix"),
    [
        pytest.param(
            _INFERENCE + _NONE.format("{ForeignNode[a...b]}"),
            "node /a/scale: a quantized tensor",
            "a separate DQ before",
            id="lines-that-continue",
        ),
        pytest.param(
            _RUNNER.format("{ForeignNode[x...If_6]}") + _DIED,
            "timed last before it is {ForeignNode[x...If_6]}",
            "an If or a Loop",
            id="layer-of-a-crash",
        ),
        pytest.param(
            _ALLOWED.format("--inputIOFormats=int8:chw") + _FORMATS,
            "does not allow INT8",
            "--int8",
            id="formats-of-the-inputs",
        ),
        pytest.param(
            _ALLOWED.format("--inputIOFormats=int8:chw --int8") + _FORMATS,
            "its neighbours allow",
            "supportsFormatCombination",
            id="allowed-formats",
        ),
        pytest.param(
            _ALLOWED.format("--best") + _UNCALIBRATED + _PASSED,
            "trtexec invents the ranges",
            "--calib=TABLE",
            id="ranges-made-up",
        ),
        pytest.param(
            _ALLOWED.format("--int8 --calib=t") + _UNCALIBRATED + _PASSED, "", "", id="ranges-of-a-table"
        ),
        pytest.param(
            _CALIBRATED + _UNSCALED,
            "without a scale after the calibration",
            "needs no calibration by the builder",
            id="calibrated",
        ),
        pytest.param(
            f"{_T} [I] Engine built in 1860.2 sec.\n",
            "took 31 minutes",
            "lower optimization level",
            id="long-build",
        ),
        pytest.param(
            f"{_T} [V] =============== Computing costs for a\n{_T} [V] *************** Autotuning format combination: Int8(8,1:4,8) -> Float(8,1) ***************\n"
            + _NONE.format("a"),
            "only these types: Int8 -> Float",
            "place.exclude",
            id="types-tried",
        ),
        pytest.param(
            f"{_T} [E] 2: [x.cpp::f::1] Error Code 2: Internal Error (Assertion d.nbDims >= 3 failed. )\n",
            "number of dimensions",
            "fold-constants",
            id="subject-of-a-check",
        ),
        pytest.param(
            f"{_ALLOWED.format('--int8')}operation.cpp:3390: DCHECK(x->is_data()) failed.\n&&&& FAILED TensorRT.trtexec [TensorRT v8501] # trtexec\n",
            "`x->is_data()` is not true",
            "another release",
            id="reason-without-a-severity",
        ),
        pytest.param(
            f"{_ALLOWED.format('--fp16 --useDLACore=0')}[W] [TRT] Layer '/a' (CONSTANT): Unsupported on DLA. Switching this layer's device type to GPU.\n",
            "DLA refuses 1 layer, first /a",
            "nothing to do if the GPU may run the layer",
            id="what-the-log-says-before-what-nobody-asked",
        ),
        pytest.param(
            f"{_T} [I] === Profile (9 iterations ) ===\n{_T} [I]   Layer   Time (ms)   Avg. Time (ms)   Time %\n{_T} [I]   out from nvm   90.0   9.0   90.0\n"
            f"{_T} [I]   {{ForeignNode[a...b]}}   10.0   1.0   10.0\n",
            "copies to and from DLA take 90%",
            "without --useDLACore",
            id="time-of-dla",
        ),
        pytest.param(
            "[08/01/2024-10:53:42] [TRT-LLM] [I] Set gemm_plugin to fp8.\nTraceback (most recent call last):\nKeyError: 'type'\n",
            "KeyError: 'type'",
            "a release that supports this model",
            id="program-that-is-older-than-the-model",
        ),
        pytest.param(
            f"{_T} [V] --------------- Timing Runner: a (Scale[0x80000007])\n{_T} [V] Skipping tactic 0x0 due to exception Assertion numScales == x.scale.count() failed. \n"
            + _NONE.format("a"),
            "the number of scales",
            "qdqtool lint",
            id="reason-in-the-model-of-a-kernel-left-out",
        ),
        pytest.param(
            f"{_T} [E] Error[4]: ITensor::getDimensions: Error Code 4: Shape Error (broadcast dimensions must be conformable)\n"
            f'{_T} [E] ModelImporter.cpp:138: While parsing node number 103 [Where -> "/a/Where_6"]:\n',
            "node /a/Where_6: the shapes",
            "shape inference",
            id="node-that-the-parser-names-next",
        ),
        pytest.param(
            "12:00:00 Building TRT engine: det.onnx\n",
            "the program builds an engine",
            "lower optimization level",
            id="program-builds",
        ),
        pytest.param(
            "[I:onnxruntime:, cuda.cc:1 GetCapability] CUDA kernel not found in registries for Op type: QLinearConv node name: a\n",
            "QOperator form",
            "qdqtool run MODEL --samples DATA",
            id="quantized-operators",
        ),
        pytest.param(
            "ERROR: ../nvdsinfer/nvdsinfer_model_builder.cpp:58 Cannot access ONNX file '/models/a.onnx'\n",
            "Cannot access ONNX file '/models/a.onnx'",
            "correct the path",
            id="error-of-a-program-in-its-own-words",
        ),
        pytest.param(
            "[E] submit request failed: [TensorRT-LLM][ERROR] Assertion failed: mMaxNewTokens > 0\n",
            "TensorRT-LLM reports an error: `mMaxNewTokens > 0` is not true",
            "change the request",
            id="error-of-an-executor",
        ),
        pytest.param(
            "[TRT] [E] Calibration failure: tensor scales for conv1 not found in cache\n",
            "written for another model",
            "calibrate again",
            id="cache-of-another-model",
        ),
        pytest.param(
            f"{_T} [E] 3: [executionContext.cpp::validateInputBindings::2043] Error Code 3: API Usage Error (Supplied binding dimension "
            "[16,512,0] for bindings[0] exceed min ~ max range at index 2)\n",
            "outside the range",
            "--maxShapes",
            id="shape-outside-the-profile",
        ),
        pytest.param(
            f"{_T} [E] Error[4]: IBuilder::buildSerializedNetwork: Error Code 4: Internal Error (kOPT values for profile 0 violate shape constraints: "
            "/a/Add: dimensions not compatible for elementwise. Condition '==' violated: 31 != 16.)\n",
            "node /a/Add: with the sizes of the profile",
            "multiples of the stride",
            id="sizes-that-do-not-fit-inside",
        ),
        pytest.param(
            "[E] Error[4]: IRuntime::deserializeCudaEngine: Error Code 4: API Usage Error (Cannot register the library as plugin creator of NMS_TRT exists already.)\n",
            "the engine itself is not at fault",
            "load the library once",
            id="plug-ins-loaded-twice",
        ),
    ],
)
def test_a_log_is_answered_by_kind(text: str, why: str, fix: str) -> None:
    told = read(text).answer
    assert told is not None
    assert why in told.why_not
    assert fix in told.fix
    assert bool(told.why_not) is bool(why)


@pytest.mark.parametrize(
    "command",
    [["parse"], ["parse", "--json"], ["diff", "FILE"], ["audit"], ["engine", "show"], ["report"]],
    ids=" ".join,
)
@pytest.mark.parametrize("text", ["", "\n\n"], ids=["nothing", "blank lines"])
def test_an_empty_log_is_a_sentence_for_every_reader(
    command: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "build.log"
    path.write_text(text)
    assert run([*(str(path) if word == "FILE" else word for word in command), str(path)]) == 5
    told = capsys.readouterr().err
    assert "build.log: the file is empty: " in told
    assert "2>&1" in told


@pytest.mark.parametrize(
    ("precisions", "said"),
    [
        (("int8", "int8-in"), ""),
        (("int8-in", "unknown"), ""),
        (("int8-in", "float"), "1 of the compute nodes is float, first n1 (Conv): its words"),
        (("unknown", "float", "float"), "2 of the compute nodes are float, first n1 (Conv): its words"),
    ],
)
def test_only_nodes_that_multiply_floats_are_called_float(precisions: tuple[str, ...], said: str) -> None:
    """A node that reads INT8 and writes floats computes in INT8; of an unknown one nothing is said."""
    nodes = [
        ComputeNode(node=f"n{at}", op="Conv", precision=precision, reason="its words")
        for at, precision in enumerate(precisions)
    ]
    seen = RunEvidence(
        nodes=nodes,
        layers=(),
        decisions=(),
        engine=(0, ""),
        generated=True,
        has_qdq=True,
        has_steps=True,
        knows_model=True,
    )
    assert answer(read(small.trtexec()), seen).why_not == said


def test_a_code_of_lint_says_which_error_of_the_builder_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "qdq101"]) == 0
    assert "As an error of the builder: the zero point is not 0" in capfd.readouterr().out


def test_a_failure_in_a_program_around_the_builder_is_answered() -> None:
    found = read(
        "E0625 08:07:38.85 1 model_lifecycle.cc:641] failed to load 'llm' version 1: Invalid argument: unable to find backend library "
        "for backend '${triton_backend}', try specifying runtime on the model configuration.\n"
    )
    assert buildlog.is_of_builder(found)
    assert found.answer is not None
    assert (found.answer.built, found.answer.degree) == (None, "exact")
    assert "placeholder" in found.answer.why_not


def test_lines_of_one_error_are_one_message() -> None:
    found = read(
        f'{_T} [E] ModelImporter.cpp:771: While parsing node number 25 [MaxPool -> "/MaxPool_output_0"]:\n'
        f"{_T} [E] ModelImporter.cpp:777: ERROR: ModelImporter.cpp:195 In function parseGraph:\n"
        "[6] Invalid Node - /MaxPool\n/MaxPool: at least 5 dimensions are required for input.\n"
        f"{_T} [E] Failed to parse onnx file\n"
    )
    told = found.answer
    assert told is not None
    assert (told.built, told.degree) == (False, "general")
    assert "/MaxPool_output_0 (MaxPool)" in told.why_not
    assert "at least 5 dimensions are required" in told.why_not


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ("Failed to read image for calibration", "could not read an image"),
        ("cannot zork the quib", "cannot zork the quib"),
    ],
)
def test_what_the_program_said_before_an_error_is_in_the_answer(before: str, words: str) -> None:
    found = read(f"{before}\nERROR: [TRT]: 1: Unexpected exception _Map_base::at\n").answer
    assert found is not None
    assert words in found.why_not
    assert 1 in found.evidence


def test_a_kernel_that_is_left_out_is_a_reason_and_no_failed_build() -> None:
    skipped = f"{_T} [E] Error[9]: Error Code: 9: Skipping tactic 0x0 due to exception [type.cpp:infer_type:145] Could not infer output types for operation: 4: quantize: a\n"
    told = read(skipped).answer
    assert told is not None
    assert (told.built, told.failed, told.evidence) == (None, False, (1,))
    assert "--stronglyTyped" in told.fix
    told = read(skipped + _NONE.format("a")).answer
    assert told is not None
    assert told.built is False


@pytest.mark.parametrize(
    ("layer", "node", "way"),
    [
        ("w.weight + /q/QuantizeLinear + /u/Conv", "/u/Conv", "repair"),
        ("c.weight + QuantizeLinear_7_quantize_scale_node + Conv_9 + Add_2", "Conv_9", "repair"),
        ("/a/Conv + PWN(PWN(/a/Sigmoid), PWN(/a/Mul))", "/a/Conv", "place"),
        ("a", "a", "place"),
    ],
)
def test_the_fix_of_a_node_without_a_kernel_is_typed_with_its_name(layer: str, node: str, way: str) -> None:
    told = read(_NONE.format(layer)).answer
    assert told is not None
    (first, *_) = actions(told.fix)
    if way == "repair":
        assert first == Command("repair", ("MODEL", "--out", "repaired.onnx", "--float", node))
    else:
        assert first == Setting("place.exclude", f"[{node}]")


def test_a_warning_that_leads_to_an_error_decides() -> None:
    warned = "WARNING: INT8 calibration file not specified/accessible. INT8 calibration can be done through setDynamicRange API\n"
    failed = "ERROR: [TRT]: [a.cpp::f::218] Error Code 2: Internal Error (Assertion b != nullptr failed. region should be gone)\n"
    told = read(warned + failed).answer
    assert told is not None
    assert "no calibration table" in told.why_not
    told = read(failed).answer
    assert told is not None
    assert "region should be gone" in told.why_not


def test_what_dla_refuses_is_the_answer_of_a_log_that_says_no_more() -> None:
    told = read(
        "[W] [TRT] Layer 'a' (CONSTANT): Unsupported on DLA. Switching this layer's device type to GPU.\n"
    ).answer
    assert told is not None
    assert "DLA refuses 1 layer, first a" in told.why_not
    assert told.evidence == (1,)


def test_an_application_that_complains_and_succeeds_did_not_fail() -> None:
    found = read(
        f"RuntimeError: a plug-in of the application was not found\n{_T} [I] [TRT] Engine generation completed in 6.9 seconds.\n"
        "&&&& PASSED TensorRT.trtexec [TensorRT v100300] # trtexec --onnx=a.onnx\n"
    )
    assert found.answer is not None
    assert (found.status, found.answer.built, found.answer.failed) == ("passed", True, False)


_PARSER = "[11/26/2025-05:52:00] [E] [TRT] ModelImporter.cpp"
_SHAPE = "Error Code 4: Internal Error (Reshape_3: IShuffleLayer applied to shape tensor must have 0 or 1 reshape dimensions: dimensions were [-1,2])"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f"{_PARSER}:779: ERROR: ModelImporter.cpp:180 In function parseGraph:\n[6] Invalid Node - Pad_13\n[shuffleNode.cpp::symbolicExecute::392] {_SHAPE}\n",
            "node Pad_13: a shape or parameter is computed at run time",
        ),
        (
            (
                "[11/26/2025-05:52:00] [E] Error[4]: ITensor::getDimensions: Error Code 4: Internal Error (/OneHot: an IIOneHotLayer cannot be used to compute a shape tensor)\n"
                f'{_PARSER}:949: While parsing node number 146 [Tile -> "/Tile_output_0"]:\n'
            ),
            "node /Tile_output_0: a shape or parameter is computed at run time",
        ),
    ],
)
def test_an_exact_cause_names_the_node_that_the_parser_names_beside_it(text: str, words: str) -> None:
    told = read(text).answer
    assert told is not None
    assert told.why_not.startswith(words)


def test_a_program_that_failed_before_the_banner_is_a_run_of_its_own() -> None:
    text = (
        "$ ./export model.onnx\n"
        "Parameter check failed at: Network.cpp::addConcatenation::308, condition: nbInputs > 0\n"
        "&&&& RUNNING TensorRT.trtexec # trtexec --onnx=model.onnx\n"
        "While parsing node number 0 [Conv]:\n"
        "ERROR: ModelImporter.cpp:296 In function importModel:\n"
        "[5] Assertion failed: tensors.count(input_name)\n"
        "&&&& FAILED TensorRT.trtexec # trtexec --onnx=model.onnx\n"
    )
    first, last = buildlog.read(io.BytesIO(text.encode())).runs
    assert first.answer is not None
    assert last.answer is not None
    assert "nbInputs > 0" in first.answer.why_not
    assert "reads a tensor that the parser does not find" in last.answer.why_not


_POLYGRAPHY = (
    "[I] RUNNING | Command: polygraphy run a.onnx {runner}\n{steps}"
    "[I] PASSED | Runtime: 1.194s | Command: polygraphy run a.onnx {runner}\n"
)
_CONFIGURED = (
    "[I] Building engine with configuration:\n    {types}\n[I] Finished engine building in 0.638 seconds\n"
)


@pytest.mark.parametrize("runner", ["--onnxrt", "--onnxrt --validate"])
def test_a_log_without_a_build_says_so_and_what_to_record(runner: str) -> None:
    ran = "[I] onnxrt-runner-N0-07/07/26-02:08:05  | Activating and starting inference\n"
    told = read(_POLYGRAPHY.format(runner=runner, steps=ran)).answer
    assert told is not None
    assert sentence(told) == "this text shows no step of a TensorRT build and none of its options"
    assert "polygraphy convert" in told.fix


@pytest.mark.parametrize(
    ("types", "precision"),
    [
        ("Flags                  | []", "FP32"),
        ("Flags                  | [FP16, DISABLE_TIMING_CACHE]", "FP32+FP16"),
        ("Precision              | TF32: False, FP16: True, INT8: False", "FP32+FP16"),
        ("Precision              | TF32: True, FP16: True, INT8: True", "FP32+FP16+INT8"),
    ],
)
def test_types_that_polygraphy_allows_are_read(types: str, precision: str) -> None:
    told = read(_POLYGRAPHY.format(runner="--trt", steps=_CONFIGURED.format(types=types))).answer
    assert told is not None
    assert (told.built, told.precision) == (True, f"{precision} allowed")
    assert ("INT8 was not requested" in told.why_not) == ("INT8" not in precision)


def test_an_engine_that_polygraphy_loads_was_built_elsewhere() -> None:
    told = read(_POLYGRAPHY.format(runner="--trt --model-type engine", steps="")).answer
    assert told is not None
    assert told.built is None
    assert "loads a finished engine (a.onnx)" in told.why_not


def test_layers_of_a_log_without_an_end_show_their_types() -> None:
    """TensorRT 5 to 7 call a convolution by its kernel: it computes, and its type is not called unknown."""
    layer = "DEBUG: [TRTorch Conversion Context] - Layer({}): a, Tactic: 14, x[Int8(128,28,28)] -> y[Int8(128,28,28)]\n"
    text = "DEBUG: [TRTorch Conversion Context] - Engine Layer Information:\n"
    told = read(text + layer.format("i8816cudnn") + layer.format("FusedConvActDirect")).answer
    assert told is not None
    assert told.precision == "compute layers: 2 int8"
    assert told.why_not == "the log does not show how the build ended"


_NAMED_FIRST = (
    f"{_T} [E] Error[3]: fc.bias_DequantizeLinear: only activation types allowed as input to this layer.\n"
)
_NAMED_NEXT = (
    f'{_T} [E] ModelImporter.cpp:771: While parsing node number 94 [DequantizeLinear -> "fc.bias_out"]:\n'
)
_CRASHED = f"{_T} [E] Error[1]: [executionContext.cpp::executeInternal::966] Error Code 1: Cuda Runtime (an illegal memory access was encountered)\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{_T} [I] Starting Calibration.\n{_CRASHED}", "in a calibration batch"),
        (
            f"{_T} [I] Starting Calibration.\n{_T} [I] Calibration completed in 6 seconds.\n{_CRASHED}",
            "a kernel crashed",
        ),
        (_CRASHED, "a kernel crashed"),
        (
            "2026-11-28 04:06:43.967599: I tensorflow/compiler/trt_engine_op.cc:812] Starting calibration thread on device 0, Resource @ 0x7f\n",
            "until the calibration ends",
        ),
        (
            f"{_NAMED_FIRST}{_NAMED_NEXT}",
            "node fc.bias_DequantizeLinear: ",
        ),
    ],
    ids=[
        "in the calibration",
        "after the calibration",
        "without a calibration",
        "TF-TRT",
        "named before its check",
    ],
)
def test_the_step_and_the_node_of_a_failure_are_in_the_answer(text: str, words: str) -> None:
    told = read(text).answer
    assert told is not None
    assert words in told.why_not


def test_the_code_of_an_error_is_not_the_rank_of_a_process() -> None:
    lines = (
        "E1128 06:50:10.976331 1 logging.cc:43] 1: [stdArchiveReader.cpp::StdArchiveReader::34] Error Code 1: Serialization (Version tag does not match.)\n",
        "E1128 06:50:10.976343 1 logging.cc:43] 4: [runtime.cpp::deserializeCudaEngine::75] Error Code 4: Internal Error (Engine deserialization failed.)\n",
    )
    assert read("".join(lines)).process == ""


def test_a_program_that_says_how_long_its_build_took_has_an_engine() -> None:
    warned = "[2026-11-28 19:39:19][warn][trt_builder.cpp:33]:NVInfer WARNING: Detected invalid timing cache, setup a local cache instead\n"
    for said, built in (("Build done 28282 ms !", True), ("Build done when the cache is ready", None)):
        told = read(f"{warned * 3}[2026-11-28 19:39:47][info][trt_builder.cpp:690]:{said}\n").answer
        assert told is not None
        assert told.built is built


@pytest.mark.parametrize("outer", "VIWEF")
def test_the_severity_that_tensorrt_gives_decides_inside_onnxruntime(outer: str) -> None:
    carried = f"2019-09-14 01:19:53.088405 [{outer}:onnxruntime:test, tensorrt_execution_provider.h:28 log] "
    told = read(f"{carried}[2019-09-14 01:19:53   ERROR] a: elementwise inputs must not be Int32\n").answer
    assert told is not None
    assert (told.failed, told.why_not) == (True, by_name("elementwise-type").meaning)


def test_the_line_of_a_plug_in_error_is_that_of_its_own_message() -> None:
    found = read(
        f"{_T} [E] ModelImporter.cpp:9: --- End node ---\n"
        f"{_T} [E] ModelImporter.cpp:9: ERROR: onnxOpCheckers.cpp:9 In function checkFallbackPluginImporter:\n"
        '[6] creator && "Plugin not found, are the plugin name, version, and namespace correct?"\n'
    )
    assert found.failure is not None
    assert (found.failure.cause, found.failure.line) == ("plugin-missing", 2)


def test_a_plug_in_that_triton_lacks_is_preloaded() -> None:
    found = read(
        "E0301 02:32:59.168956 1 logging.cc:43] INVALID_ARGUMENT: getPluginCreator could not find plugin Zork_TRT version 1\n"
        "E0301 02:32:59.178933 1 model_repository_manager.cc:832] failed to load 'zork' version 1: Internal: unable to create TensorRT engine\n"
    )
    assert found.answer is not None
    assert "LD_PRELOAD" in found.answer.fix


def test_a_message_about_an_unused_timing_cache_is_not_about_an_engine() -> None:
    found = read(
        "[E] 1: [stdArchiveReader.cpp::read::47] Error Code 1: Serialization (Serialization assertion a == b failed.Version tag does not match. Note: Current Version: 9)\n"
        "[E] 4: The timing cache will not be used!\n"
    )
    assert found.failure is not None
    assert found.failure.cause == "timing-cache"


_GLOG = "I0421 02:31:36.062498 89829 logging.cc:49] "


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (
            f"{_GLOG}Loaded engine size: 72 MiB\n{_GLOG}Trying to load shared library libcublas.so.11\n",
            "triton",
        ),
        (
            "[07:48:03.5] [INFO] [llmBuilder.cpp:118:build] Created directory a\n[07:48:03.6] [ERROR] [TensorRT] Error Code 2: Internal Error (a)\n",
            "edge-llm",
        ),
        ("[a_mt-1] [ERROR] [169.7] [b]: [NitrosNode] loadExtensions Error: GXF_FAILURE\n", "isaac-ros"),
    ],
)
def test_an_application_is_named_by_its_own_lines(text: str, program: str) -> None:
    assert read(text).front_end == program


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "INFO nvinfer gstnvinfer.cpp:619:gst_nvinfer_logger:<a> b: Use deserialized engine model: /a/b_gpu0_int8.engine\n",
            "; int8; DeepStream runs a finished engine",
        ),
        (
            (
                "[04/17/2026-08:21:45] [TRT-LLM] [E] Failed to parse the arguments for the LLM constructor: 1 validation error for TrtLlmArgs\n"
                "  Value error, max_zork [2048] is greater than build_config.max_zork [64] in build_config [type=value_error]\n"
            ),
            "max_zork [2048] is greater than",
        ),
        (
            "[a_mt-1] [ERROR] [169.7] [b]: [NitrosContext] dlopen failed: libzork.so: cannot open shared object file: No such file\n",
            "libzork.so",
        ),
    ],
    ids=["reused engine", "value of an argument", "missing library"],
)
def test_the_answer_quotes_what_decides(text: str, words: str) -> None:
    told = read(text).answer
    assert told is not None
    assert words in sentence(told)


def test_an_engine_without_shown_types_says_how_to_see_them() -> None:
    told = read(
        f"{_T} [I] [TRT] Engine generation completed in 6.9 seconds.\n&&&& PASSED TensorRT.sample [TensorRT v100900] # ./sample\n"
    ).answer
    assert told is not None
    assert sentence(told).startswith("built; the log shows neither")
    assert "--exportLayerInfo" in told.fix
