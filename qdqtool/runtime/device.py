"""Devices: a word such as `cuda:1` names an execution provider of onnxruntime. Each thread can use its own provider.

Words are cpu, cuda, cuda:1, tensorrt, rtx, openvino, openvino:GPU, and path/to/provider.so for a plug-in library. The
number or kind of the device follows the colon, then options of the provider as key=value, separated by commas. A path
names a plug-in provider library, which onnxruntime loads into this process: it runs code.

Everything that computes with a recipe does it inside `runtime.session.computing_on`, which opens every session on that provider.
Checks of models stay on the CPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from qdqtool.core.wording import Command, count_noun, list_names
from qdqtool.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """An execution provider of onnxruntime with its device and options.

    Attributes:
        word: the device as typed.
        name: onnxruntime's name of the execution provider; "" for a library, whose provider is known once it is loaded.
        pick: number or kind ("GPU") of the device, or "".
        options: options of the provider, as the user gave them (memory limits of a GPU are among them).
        library: plug-in provider library, or None.
    """

    word: str
    name: str
    pick: str = ""
    options: tuple[tuple[str, str], ...] = ()
    library: Path | None = None


CPU: Final = Provider(word="cpu", name="CPUExecutionProvider")
"""The default provider, which also runs nodes that another provider does not support."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownDevice:
    """A device with a word in `DEVICES`.

    Attributes:
        provider: onnxruntime's name of its execution provider.
        instead: package that holds onnxruntime with this provider, in place of `onnxruntime`; "" if there is none.
        beside: package with a plug-in library, installed beside `onnxruntime`; "" without one.
        module: Python module of that package.
        number: the provider's option that takes the number or kind of the device.
        exact: options with which the device computes as the graph states, as near to the CPU as possible.
        needs: the hardware that it runs on, in words.
        one_thread: each thread that runs a session gets separate handles and workspaces in the device's memory, so
            one thread opens and runs all sessions.
    """

    provider: str
    instead: str = ""
    beside: str = ""
    module: str = ""
    number: str = "device_id"
    exact: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    one_thread: bool = False


# Low-precision transformations would turn Q/DQ into OpenVINO's own INT8 kernels, and a precision hint below FP32 would round.
_OPENVINO_EXACT: Final = '{"%s":{"INFERENCE_PRECISION_HINT":"f32"%s}}'
_WITHOUT_INT8: Final = ',"LP_TRANSFORMS_MODE":"NO"'
"""A property that only OpenVINO's CPU device has."""

DEVICES: Final[Mapping[str, KnownDevice]] = {
    "cpu": KnownDevice(provider=CPU.name),
    "cuda": KnownDevice(
        provider="CUDAExecutionProvider",
        instead="onnxruntime-gpu[cuda,cudnn]",
        # TF32 keeps ten bits of the mantissa; an algorithm chosen by time can differ between runs.
        exact={"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"},
        needs="an NVIDIA GPU",
        one_thread=True,
    ),
    "tensorrt": KnownDevice(
        provider="TensorrtExecutionProvider",
        instead="onnxruntime-gpu[cuda,cudnn] tensorrt",
        needs="an NVIDIA GPU",
        one_thread=True,
    ),
    "rtx": KnownDevice(
        provider="NvTensorRTRTXExecutionProvider",
        beside="onnxruntime-ep-nv-tensorrt-rtx",
        module="onnxruntime_ep_nv_tensorrt_rtx",
        needs="an NVIDIA RTX GPU",
        one_thread=True,
    ),
    "openvino": KnownDevice(
        provider="OpenVINOExecutionProvider",
        instead="onnxruntime-openvino",
        beside="onnxruntime-ep-openvino",
        module="onnxruntime_ep_openvino",
        number="device_type",
        needs="an Intel processor or GPU (onnxruntime-openvino also runs on others with x86-64)",
    ),
    "webgpu": KnownDevice(
        provider="WebGpuExecutionProvider",
        beside="onnxruntime-ep-webgpu",
        module="onnxruntime_ep_webgpu",
        needs="a GPU with a Vulkan, Direct3D 12 or Metal driver",
    ),
    "directml": KnownDevice(
        provider="DmlExecutionProvider",
        instead="onnxruntime-directml",
        needs="Windows and a GPU with Direct3D 12",
    ),
}
"""Known devices by their word."""
_ALSO: Final = {"nvtensorrtrtx": "rtx", "trt": "tensorrt", "gpu": "cuda", "dml": "directml"}
"""Other words for devices in `DEVICES`."""
_LIBRARY: Final = re.compile(r"(?P<name>.+?\.(?:so(?:\.\d+)*|dll|dylib)|[^:]*)(?::(?P<rest>.*))?", re.DOTALL)
_MOST_OPERATORS: Final = 4
"""Largest number of operators that a sentence names."""


def known_device(provider: Provider) -> KnownDevice:
    """Return the entry of a provider in `DEVICES`, or a new entry with only its name."""
    entries = (entry for entry in DEVICES.values() if entry.provider == provider.name)
    return next(entries, KnownDevice(provider=provider.name))


def names_library(word: str) -> bool:
    """Return True if a device is a plug-in library, which runs code when it is loaded."""
    match = _LIBRARY.fullmatch(word)
    return match is not None and bool(re.search(r"\.(so(\.\d+)*|dll|dylib)$", match["name"]))


def provider_of(word: str) -> Provider:
    """Return the provider that a word names; `runtime.session` checks whether it is installed.

    Raises:
        UsageError: no device has this word, or an option is not of the form key=value.
    """
    match = _LIBRARY.fullmatch(word.strip())
    called, options_text = (match["name"], match["rest"] or "") if match else (word, "")
    pick, options = _options(options_text, word)
    if names_library(word):
        return Provider(word=word, name="", pick=pick, options=options, library=Path(called))
    small = called.lower()
    device = DEVICES.get(_ALSO.get(small, small))
    if device is None and not re.fullmatch(r"\w+ExecutionProvider", called):
        close = get_close_matches(small, [*DEVICES, *_ALSO], n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise UsageError(
            f"unknown device {called!r}",
            fix=f"{meant}Choose one of {', '.join(DEVICES)}, or the path of a plug-in provider library (.so, .dll); "
            f"{Command('doctor')} lists the devices of this machine",
            where="--device",
        )
    if pick.isdigit() and device is not None and device.number == "device_type":
        raise UsageError(
            f"{small} takes a kind of device, not the number {pick}",
            fix=f"write {small}:CPU, {small}:GPU or {small}:GPU.{pick}",
            where="--device",
        )
    provider = Provider(word=word, name=device.provider if device else called, pick=pick, options=options)
    if provider.name != CPU.name:
        return provider
    if pick or options:
        raise UsageError("the device cpu has no options", fix="write cpu", where="--device")
    return CPU


def _options(text: str, word: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the number or kind and the options in the text after a device's colon. Values may contain commas."""
    entries = [entry.strip() for entry in re.split(r",(?=\s*\w+=)", text) if entry.strip()]
    pick = entries.pop(0) if entries and "=" not in entries[0] else ""
    pairs = [entry.partition("=") for entry in entries]
    if any(not equals for _, equals, _ in pairs) or not re.fullmatch(r"[\w.]*", pick):
        raise UsageError(
            f"cannot read the part after the colon of the device {word!r}",
            fix="write a number and options as key=value: cuda:1,gpu_mem_limit=2147483648",
            where="--device",
        )
    return pick, tuple((key, value) for key, _, value in pairs)


def options_for(provider: Provider, *, exact: bool, plugged: bool) -> dict[str, str]:
    """Return the options of a session on a device.

    They are options for exact results, the device's number, and the user's options, which win.

    A plug-in library is given the device itself (`plugged`), not its number.
    """
    device = known_device(provider)
    settings = dict(device.exact) if exact else {}
    is_openvino = device.provider == DEVICES["openvino"].provider
    if is_openvino and exact:
        kind = (provider.pick or CPU.word).upper()
        settings["load_config"] = _OPENVINO_EXACT % (kind, _WITHOUT_INT8 if kind == "CPU" else "")
    if not plugged and is_openvino:
        settings[device.number] = (provider.pick or CPU.word).upper()
    elif not plugged and provider.pick:
        settings[device.number] = provider.pick
    return settings | dict(provider.options)


# --- the device in use -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DeviceUse:
    """A device in use, with notes about its use.

    Attributes:
        provider: provider of the sessions.
        elsewhere: nodes that the CPU ran instead, at most in one session, by operator.
        shortages: sentences about memory that was not enough.
    """

    provider: Provider = CPU
    elsewhere: Counter[str] = field(default_factory=Counter)
    shortages: list[str] = field(default_factory=list)

    def assigned(self, elsewhere: Counter[str]) -> None:
        """Record the nodes of a session that the CPU runs instead of the device."""
        self.elsewhere |= elsewhere

    def notes(self) -> tuple[str, ...]:
        """Return sentences for artefacts about the device: its name, unless it is the CPU, and its problems."""
        where = f"models ran on the device {self.provider.word} ({self.provider.name} of onnxruntime)"
        return (*(() if self.provider == CPU else (where,)), *self.troubles())

    def troubles(self) -> tuple[str, ...]:
        """Return the problems of the device that the terminal shows too: memory shortages, and nodes that the CPU ran."""
        sentences = list(dict.fromkeys(self.shortages))
        if self.elsewhere:
            ops = [f"{op} ({count})" for op, count in self.elsewhere.most_common()]
            nodes = count_noun(sum(self.elsewhere.values()), "node")
            sentences.append(
                f"the CPU ran {nodes} that the device {self.provider.word} does not support: {list_names(ops, _MOST_OPERATORS)}"
            )
        return tuple(sentences)


IN_USE: Final[ContextVar[DeviceUse | None]] = ContextVar("device", default=None)


def device_use() -> DeviceUse:
    """Return the device that `runtime.session.computing_on` set for this part of the program; else the CPU."""
    return IN_USE.get() or DeviceUse()


def current() -> Provider:
    """Return the provider of the device in use."""
    return device_use().provider
