"""What was asked: the echo of options, the device, and the model's header."""

from __future__ import annotations

import re

from qdqtool.buildlog.grammar import Handler
from qdqtool.core.buildlog import OnnxHeader

_WORKSPACE = re.compile(r"workspace: (\d{1,9}(?:\.\d{1,12})?(?:e-?\d{1,2})?) MiB")
_LONGEST = 2000
"""Characters kept of an option."""
_MOST = 512
"""Options kept per run; trtexec prints about ninety."""


class OptionsCollector:
    """Keeps section -> option -> value; repeated options are joined with commas."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, str]] = {}
        self._current: dict[str, str] = {}
        self._kept = 0
        self._header: dict[str, str] = {}
        self.plugins = 0

    def handlers(self) -> dict[str, Handler]:
        header = {
            "onnx-file": "file",
            "onnx-ir": "ir_version",
            "onnx-opset": "opset",
            "onnx-producer": "producer",
            "onnx-producer-version": "producer_version",
            "onnx-domain": "domain",
            "onnx-model-version": "model_version",
        }
        return {
            "section-options": self._open,
            "section-device": lambda line: self._open(line, "Device"),
            "section-joined": self._open_joined,
            "option": self._option,
            "option-tight": self._option,
            "option-unset": lambda line, key: self._option(line, key, ""),
            "plugin-registered": self._plugin,
            **{name: self._note(field) for name, field in header.items()},
        }

    @property
    def onnx(self) -> OnnxHeader | None:
        """The model's header, or None if none is printed."""
        return OnnxHeader(**{"file": "", **self._header}) if self._header else None

    @property
    def batch(self) -> int:
        """The implicit batch of up to TensorRT 9; 1 where the model holds its batch."""
        text = self.sections.get("Inference", {}).get("Batch", "")
        return int(text) if text.isascii() and text.isdigit() and 0 < len(text) < 7 and int(text) else 1

    @property
    def workspace(self) -> int | None:
        """The workspace limit in bytes; None if it is the default, or not printed."""
        found = _WORKSPACE.search(self.sections.get("Build", {}).get("Memory Pools", ""))
        return int(float(found[1]) * (1 << 20) + 0.5) if found else None

    def _open(self, _line: int, title: str) -> None:
        if len(self.sections) < 32:
            title = title[:_LONGEST]
            self._current = self.sections.setdefault(
                title.removesuffix(" Options").removesuffix(" Information"), {}
            )

    def _open_joined(self, line: int, title: str, option: str, value: str) -> None:
        self._open(line, title)
        self._option(line, option, value)

    def _option(self, _line: int, key: str, value: str) -> None:
        key, value = key[:_LONGEST], value.strip()[:_LONGEST]
        if self._kept >= _MOST:
            return
        self._kept += 1
        before = self._current.get(key)
        repeated = before and before != value and value not in before.split(", ")
        self._current[key] = f"{before}, {value}" if repeated else value

    def _plugin(self, _line: int, *_fields: str) -> None:
        self.plugins += 1

    def _note(self, field: str) -> Handler:
        def handle(_line: int, value: str) -> None:
            self._header.setdefault(field, value.strip()[:_LONGEST])

        return handle
