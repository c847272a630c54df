"""Words for devices become providers, and what is missing or falls back is said with a command that can be typed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Thread, current_thread
from typing import Any

import onnxruntime
import pytest

from qdqtool.calibration.pool import Room, fetch_tensors
from qdqtool.calibration.session import MemoryShortageError
from qdqtool.cli.app import run
from qdqtool.errors import InputFileError, MissingPackage, UsageError
from qdqtool.pipeline import recipes
from qdqtool.runtime import session
from qdqtool.runtime.device import (
    CPU,
    DEVICES,
    Provider,
    current,
    device_use,
    names_library,
    options_for,
    provider_of,
)
from qdqtool.runtime.runner import open_runner
from qdqtool.runtime.session import _OneThread, computing_on, message_of, ran_out_of_memory
from tests.backends import graphs
from tests.models import save


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("cpu", CPU),
        ("CUDA", Provider(word="CUDA", name="CUDAExecutionProvider")),
        ("cuda:1", Provider(word="cuda:1", name="CUDAExecutionProvider", pick="1")),
        (
            "cuda:0,gpu_mem_limit=2147483648,use_tf32=1",
            Provider(
                word="cuda:0,gpu_mem_limit=2147483648,use_tf32=1",
                name="CUDAExecutionProvider",
                pick="0",
                options=(("gpu_mem_limit", "2147483648"), ("use_tf32", "1")),
            ),
        ),
        (
            "tensorrt:trt_fp16_enable=1",
            Provider(
                word="tensorrt:trt_fp16_enable=1",
                name="TensorrtExecutionProvider",
                options=(("trt_fp16_enable", "1"),),
            ),
        ),
        (
            'openvino:CPU,load_config={"CPU":{"A":1,"B":2}}',
            Provider(
                word='openvino:CPU,load_config={"CPU":{"A":1,"B":2}}',
                name="OpenVINOExecutionProvider",
                pick="CPU",
                options=(("load_config", '{"CPU":{"A":1,"B":2}}'),),
            ),
        ),
        ("QNNExecutionProvider", Provider(word="QNNExecutionProvider", name="QNNExecutionProvider")),
        (
            "ep/libmine.so.1:1",
            Provider(word="ep/libmine.so.1:1", name="", pick="1", library=Path("ep/libmine.so.1")),
        ),
        ("C:/ep/mine.dll", Provider(word="C:/ep/mine.dll", name="", library=Path("C:/ep/mine.dll"))),
    ],
)
def test_a_word_names_a_provider_a_device_and_options(word: str, expected: Provider) -> None:
    assert provider_of(word) == expected


@pytest.mark.parametrize("word", ["openvin", "gpuu", "", "cuda:1,fast", "cuda:a b", "mine.txt", "cpu:fast"])
def test_a_word_that_is_no_device_is_refused_with_the_words_that_are(word: str) -> None:
    with pytest.raises(UsageError) as refused:
        provider_of(word)
    assert re.search("cuda|write cpu", refused.value.fix)


def test_openvino_takes_a_kind_of_device_and_no_number() -> None:
    with pytest.raises(UsageError, match=r"kind of device.*openvino:GPU\.1"):
        provider_of("openvino:1")
    assert provider_of("openvino:GPU.1").pick == "GPU.1"
    assert provider_of("cuda:1").pick == "1"


def test_only_paths_of_libraries_run_code() -> None:
    assert [
        word for word in ("cuda:1", "openvino", "a/b.so", "b.so.1:2", "x.dll", "so") if names_library(word)
    ] == [
        "a/b.so",
        "b.so.1:2",
        "x.dll",
    ]


def test_a_recipe_may_name_a_library_only_with_trust(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("compute:\n  device: ./provider.so\n")
    with pytest.raises(UsageError, match="would execute these libraries"):
        recipes.load(str(recipe))
    assert recipes.load(str(recipe), trust=True).compute.device == "./provider.so"
    recipe.write_text("compute:\n  device: cuda:1\n")
    assert recipes.load(str(recipe)).compute.device == "cuda:1"


def test_a_session_agrees_with_the_cpu_unless_the_user_says_otherwise() -> None:
    word = "cuda:1,use_tf32=1"
    assert options_for(provider_of("cuda"), exact=True, plugged=False)["use_tf32"] == "0"
    assert options_for(provider_of(word), exact=True, plugged=False)["use_tf32"] == "1"
    assert options_for(provider_of("cuda:1"), exact=False, plugged=False) == {"device_id": "1"}
    openvino = options_for(provider_of("openvino"), exact=True, plugged=False)
    assert openvino["device_type"] == "CPU"
    assert "f32" in openvino["load_config"]
    assert (
        "LP_TRANSFORMS_MODE"
        not in options_for(provider_of("openvino:GPU"), exact=True, plugged=True)["load_config"]
    )


@pytest.mark.parametrize("word", [word for word in DEVICES if word != "cpu"])
def test_a_device_that_is_not_installed_says_how_to_get_it(
    word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "list_built_in_providers", lambda: (CPU.name,))
    monkeypatch.setattr(session, "_library_of", lambda _module: None)
    monkeypatch.setattr(session, "onnxruntime_packages", lambda: ("onnxruntime",))
    session.find_device.cache_clear()
    with pytest.raises(MissingPackage, match=DEVICES[word].provider) as missing, computing_on(word):
        pass
    known = DEVICES[word]
    if known.beside:
        assert f"pip install {known.beside}" in missing.value.fix
    if known.instead:
        assert "pip uninstall -y onnxruntime && pip install '" in missing.value.fix
        assert known.instead.split()[0] in missing.value.fix
    session.find_device.cache_clear()


def test_the_command_line_refuses_a_missing_device_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "list_built_in_providers", lambda: (CPU.name,))
    session.find_device.cache_clear()
    model = save(graphs.conv_relu(), tmp_path)
    command = [
        "quantize",
        str(model),
        "--samples",
        "random:2",
        "-o",
        str(tmp_path / "q.onnx"),
        "--device",
        "cuda",
    ]
    assert run(command) == MissingPackage.exit_code
    said = " ".join(capsys.readouterr().err.split())
    assert "onnxruntime has no CUDAExecutionProvider" in said
    assert "onnxruntime-gpu[cuda,cudnn]" in said
    assert not (tmp_path / "q.onnx").exists()


def test_a_provider_that_cannot_be_loaded_is_an_error_and_not_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """onnxruntime-gpu without CUDA's libraries lists CUDA, and goes on with the CPU on its own."""
    monkeypatch.setattr(session, "list_built_in_providers", lambda: (DEVICES["cuda"].provider, CPU.name))
    session.find_device.cache_clear()
    real = onnxruntime.InferenceSession

    def fallen_back(source: bytes, **options: Any) -> Any:
        assert options["enable_fallback"] == 0
        return real(source, sess_options=options["sess_options"], providers=[CPU.name])

    monkeypatch.setattr(onnxruntime, "InferenceSession", fallen_back)
    with computing_on("cuda"), pytest.raises(MissingPackage, match="cannot load it"):
        open_runner(graphs.conv_relu().SerializeToString(), description="")
    session.find_device.cache_clear()


def test_two_builds_of_onnxruntime_are_found_by_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    from qdqtool.backends import inventory

    monkeypatch.setattr(session, "onnxruntime_packages", lambda: ("onnxruntime", "onnxruntime-gpu"))
    item = inventory._onnxruntime()
    assert item.state == "limited"
    assert "overwrite each other" in item.detail
    assert item.fix == "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"


def test_a_library_that_is_not_there_or_none_is_a_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(InputFileError, match="plug-in provider library does not exist"),
        computing_on(str(tmp_path / "gone.so")),
    ):
        pass
    text = tmp_path / "text.so"
    text.write_text("not a library")
    with pytest.raises((InputFileError, MissingPackage)) as refused, computing_on(str(text)):
        pass
    assert refused.value.fix


def test_a_block_inside_a_block_for_the_same_device_shares_its_notes() -> None:
    assert current() == CPU
    with computing_on("cpu") as outer:
        with computing_on("cpu") as inner:
            inner.shortages.append("one")
        assert outer is inner is device_use()
        assert outer.notes() == ("one",)
    assert device_use() is not outer


def test_nodes_on_the_cpu_are_counted_by_operator() -> None:
    use = device_use()
    use.provider = provider_of("cuda")
    use.assigned(Counter({"If": 1, "Loop": 2}))
    use.assigned(Counter({"If": 3}))
    where, note = use.notes()
    assert where == "models ran on the device cuda (CUDAExecutionProvider of onnxruntime)"
    assert note == "the CPU ran 5 nodes that the device cuda does not support: If (3), Loop (2)"


# --- memory ---


class Tight:
    """A fetcher on a device that holds so many samples, and so many tensors of one of them."""

    def __init__(
        self, names: tuple[str, ...], samples: int, tensors: int, barrier: Barrier | None = None
    ) -> None:
        self.names, self.samples, self.tensors, self.barrier = names, samples, tensors, barrier
        self.running: list[int] = []

    @contextmanager
    def _one(self) -> Iterator[None]:
        self.running.append(1)
        try:
            yield
        finally:
            self.running.pop()

    def run(self, feeds: dict[str, Any], where: str) -> Iterator[tuple[str, Any]]:
        with self._one():
            if self.barrier is not None and len(self.running) <= self.barrier.parties:
                barrier, self.barrier = self.barrier, None
                barrier.wait(10)
            if len(self.running) > self.samples or len(self.names) > self.tensors:
                raise MemoryShortageError("out of memory", fix="none", where=where)
            return iter([(name, feeds["x"]) for name in self.names])

    def halves(self) -> tuple[Tight, ...]:
        middle = len(self.names) // 2
        parts = (self.names[:middle], self.names[middle:]) if middle else ()
        return tuple(Tight(part, self.samples, self.tensors) for part in parts)


def test_tensors_that_do_not_fit_together_are_fetched_in_parts_and_that_is_said() -> None:
    with computing_on("cpu") as use:
        room = Room(1)
        found = fetch_tensors(room, Tight(tuple("abcde"), 1, 2), {"x": 3}, "one")  # type: ignore[arg-type]
    assert found == dict.fromkeys("abcde", 3)
    assert any("half of them are fetched at a time" in note for note in use.notes())


def test_fewer_samples_run_at_once_where_memory_is_not_enough() -> None:
    results: list[Any] = []
    with computing_on("cpu") as use:
        room = Room(4)
        tight = Tight(("a",), 1, 1)
        threads = [
            Thread(target=lambda: results.append(fetch_tensors(room, tight, {"x": 1}, "")))  # type: ignore[arg-type]
            for _ in range(4)
        ]
        with room.sample() as allowed:
            room.shrink(allowed)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert results == [{"a": 1}] * 4
    assert re.match(r"cpu: out of memory with 4 samples at once: using 2 at once", use.notes()[0])


def test_a_single_tensor_that_does_not_fit_is_an_error() -> None:
    with computing_on("cpu"), pytest.raises(MemoryShortageError):
        fetch_tensors(Room(1), Tight(("a", "b"), 1, 0), {"x": 1}, "")  # type: ignore[arg-type]


def test_a_shortage_of_memory_is_told_from_other_failures() -> None:
    texts = [
        "CUDA failure 2: out of memory",
        "Failed to allocate memory for requested buffer",
        "std::bad_alloc",
    ]
    assert all(session.ran_out_of_memory(RuntimeError(text)) for text in texts)
    assert not session.ran_out_of_memory(RuntimeError("Got invalid dimensions for input"))


_SOURCE = "/onnxruntime_src/onnxruntime/core"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                f"[ONNXRuntimeError] : 1 : FAIL : {_SOURCE}/providers/cuda/cuda_call.cc:154 std::conditional_t<THRW, void, Status> "
                "onnxruntime::CudaCall(ERRTYPE, const char*, const char*) [with ERRTYPE = cublasStatus_t; bool THRW = true] CUBLAS failure 3: "
                "the resource allocation failed ; GPU=0 ; hostname=vm ; file=cuda_execution_provider.cc ; line=245 ; "
                "expr=cublasCreate(&cublas_handle_); "
            ),
            "CUBLAS failure 3 (the resource allocation failed) on GPU 0 in cublasCreate(&cublas_handle_)",
        ),
        (
            (
                f"Error in execution: {_SOURCE}/framework/bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, "
                "onnxruntime::Stream*) Available memory of 0 is smaller than requested bytes of 602112\n"
            ),
            "Error in execution: Available memory of 0 is smaller than requested bytes of 602112",
        ),
        (
            (
                "/onnxruntime_src/onnxruntime/python/onnxruntime_pybind_state.cc:729 void onnxruntime::python::RegisterPlugins("
                "PySessionOptions&, const onnxruntime::ProviderOptions&) Please install TensorRT libraries"
            ),
            "Please install TensorRT libraries",
        ),
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no kernel for Foo(1)", "no kernel for Foo(1)"),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_onnxruntime_is_said_without_its_functions(text: str, expected: str) -> None:
    error = RuntimeError(text)
    assert message_of(error) == expected
    assert ran_out_of_memory(error) == ("allocation" in text or "smaller" in text)


def test_all_sessions_of_a_gpu_are_run_by_one_thread() -> None:
    """A session of CUDA keeps handles and workspaces for every thread that ever ran it."""
    seen: list[str] = []

    class Session:
        def run(self, names: list[str], feeds: dict[str, Any]) -> list[str]:
            seen.append(current_thread().name)
            return names

    sessions: list[Any] = [_OneThread(Session()) for _ in range(3)]  # type: ignore[arg-type]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: sessions[number % 3].run([str(number)], {}), range(24)))
    assert made == [[str(number)] for number in range(24)]
    assert len(set(seen)) == 1
    assert all(DEVICES[word].one_thread for word in ("cuda", "tensorrt", "rtx"))
