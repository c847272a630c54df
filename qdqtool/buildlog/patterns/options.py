"""What trtexec was asked: its echo of model, build, system, inference and reporting options, and the device."""

from qdqtool.buildlog.pattern import LogSection, PatternSet, message, row

_OPTION = message(
    "option",
    "{key}: {value}",
    "Memory Pools: workspace: 1024 MiB, dlaSRAM: default, dlaLocalDRAM: default, dlaGlobalDRAM: default",
    "Input build shape: x=1x3x224x224+4x3x224x224+16x3x224x224",
    "Selected Device: NVIDIA GeForce RTX 3090",
)
_EMPTY = row("option-unset", r"(?P<key>[^:]{1,80}):", "Output:", "Plugins:", "setPluginsToSerialize:")
_TIGHT = row(
    "option-tight", r"(?P<key>Dump refittable layers):(?P<value>\w+)", "Dump refittable layers:Disabled"
)
_NOTE = message(
    "options-note",
    "Note: {text}",
    "Note: The application clock rates do not reflect the actual clock rates that the GPU is currently running at.",
)
_DEVICE_HEAD = message("available-devices", "Available Devices:{devices?}", "Available Devices: ")
_DEVICE = row(
    "available-device",
    r'Device (?P<index>\d+): "(?P<name>[^"]*)" UUID: (?P<uuid>\S+)',
    'Device 0: "NVIDIA H100 PCIe" UUID: GPU-31e9692b-62b7-2d62-f0b1-f4195b568ac7',
)
_FILE = row("option-file", r"(?P<key>\S{1,300})<-(?P<value>\S.*)", "x<-x.input.1.1.28.28.fp32.raw")
_ROWS = (_DEVICE, _NOTE, _DEVICE_HEAD, _OPTION, _EMPTY, _TIGHT, _FILE)

PLUGIN = PatternSet(
    patterns=(
        message(
            "section-options", "=== {title} Options ===", "=== Build Options ===", "=== Model Options ==="
        ),
        message("section-device", "=== Device Information ===", "=== Device Information ==="),
        message(
            "section-joined",
            "=== {title} ==={option}: {value?}",
            "=== Device Information ===Device: 0",
        ),
    ),
    sections=(
        LogSection(opens="section-options", rows=_ROWS),
        LogSection(opens="section-device", rows=_ROWS),
        LogSection(opens="section-joined", rows=_ROWS),
    ),
)
