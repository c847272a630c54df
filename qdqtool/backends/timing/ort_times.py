"""Times an ONNX model on an onnxruntime execution provider: wall-clock time of one call, transfers included."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.errors import MissingPackage, UsageError
from qdqtool.runtime.runner import OrtRunner, open_runner
from qdqtool.runtime.session import Provider, installed_providers, known_providers

if TYPE_CHECKING:
    from numpy.typing import NDArray

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "nvtensorrtrtx": "NvTensorRTRTXExecutionProvider",
}
"""Words for onnxruntime's execution providers."""


class OrtClock:
    """One model on one provider."""

    def __init__(self, model: Path, provider: str, feeds: Mapping[str, NDArray[Any]]) -> None:
        self._runner: OrtRunner = open_runner(
            model, description=model.name, provider=provider_of(provider), faithful=False
        )
        self._feeds = feeds
        self.name = f"{model.name} on {provider}"
        self.measures = "wall-clock time of one onnxruntime call, transfers included"

    def warm_up(self, milliseconds: float) -> None:
        """Run for at least this long, once at the least."""
        end = time.perf_counter() + milliseconds / 1000
        self._runner.run(self._feeds)
        while time.perf_counter() < end:
            self._runner.run(self._feeds)

    def measure(self, iterations: int) -> tuple[float, ...]:
        """Milliseconds of each call."""
        times = []
        for _ in range(iterations):
            start = time.perf_counter_ns()
            self._runner.run(self._feeds)
            times.append((time.perf_counter_ns() - start) / 1e6)
        return tuple(times)


def provider_of(word: str) -> Provider:
    """An execution provider that is installed here, spelled as "cpu" or "tensorrt:trt_fp16_enable=1,device_id=0".

    Raises:
        UsageError: nobody calls a provider so, or an option is not of the form key=value.
        MissingPackage: the installed onnxruntime does not have it.
    """
    called, _, choices = word.partition(":")
    name = PROVIDERS.get(called.lower(), called)
    if name not in {*PROVIDERS.values(), *known_providers()}:
        raise UsageError(f"there is no provider {called!r}", fix=f"choose one of {', '.join(PROVIDERS)}")
    options = [choice.partition("=") for choice in choices.split(",") if choice]
    if any(not equals for _, equals, _ in options):
        raise UsageError(f"cannot read the provider's options {choices!r}", fix="write key=value,key=value")
    available = installed_providers()
    if name not in available:
        raise MissingPackage(
            f"the installed onnxruntime has no {name} (it has {', '.join(available)})",
            fix="pip install onnxruntime-gpu in place of onnxruntime, on a machine with an NVIDIA GPU",
        )
    return Provider(name=name, options=tuple((key, value) for key, _, value in options))
