"""A program that behaves like trtexec of a release: its banner, its help, its log, its products, its failures.

`install(folder, release)` writes an executable file. What it does beyond building is chosen by the environment
variable STAND_IN: hang, silent, other, crash, no-kernel, no-kernel-for-int8, parse-error, no-engine, no-inference,
out-of-memory, disk-full, killed (with half an engine written), flood (a log without line ends), family (hangs, and so
does a child of its own, whose number is in STAND_IN_CHILD), at-most-N (no engine of a model with more than N
DequantizeLinear). Times depend on the mode too: pairs-faster and pairs-slower, by each DequantizeLinear of the model;
pairs-noisy, faster but by less than rounds differ; launches, faster but with launches that take longer than kernels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMON = [
    "onnx",
    "saveEngine",
    "loadEngine",
    "minShapes",
    "optShapes",
    "maxShapes",
    "memPoolSize",
    "builderOptimizationLevel",
    "timingCacheFile",
    "profilingVerbosity",
    "exportLayerInfo",
    "dumpLayerInfo",
    "skipInference",
    "verbose",
    "noTF32",
    "maxAuxStreams",
    "sparsity",
    "useDLACore",
    "allowGPUFallback",
    "shapes",
    "iterations",
    "duration",
    "warmUp",
    "useCudaGraph",
    "noDataTransfers",
    "useSpinWait",
    "exportTimes",
    "exportProfile",
    "dumpProfile",
    "separateProfileRun",
    "loadInputs",
    "dumpOutput",
    "exportOutput",
    "dumpRawBindingsToFile",
    "device",
    "tacticSources",
    "refit",
    "avgTiming",
    "percentile",
    "idleTime",
    "threads",
]
WEAK = ["fp16", "int8", "best", "calib", "precisionConstraints", "layerPrecisions", "layerOutputTypes", "fp8"]
RELEASES = {
    8601: [*COMMON, *WEAK, "streams", "buildOnly", "workspace", "heuristic", "minTiming"],
    101600: [*COMMON, *WEAK, "bf16", "int4", "stronglyTyped", "infStreams", "useProfile", "stripWeights"],
    110100: [
        *COMMON,
        "stronglyTyped",
        "infStreams",
        "useProfile",
        "stripWeights",
        "includeDataTransfers",
        "noCudaGraph",
    ],
}
"""Packed release: the flags of its help."""


def install(folder: Path, release: int) -> Path:
    """An executable trtexec of this release in `folder`."""
    path = folder / "trtexec"
    root = Path(__file__).resolve().parents[2]
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(root)!r})\n"
        f"from tests.backends.stand_in_trtexec import main\nmain({release})\n"
    )
    path.chmod(0o755)
    return path


def main(release: int) -> None:
    mode = os.environ.get("STAND_IN", "")
    if mode == "silent":
        sys.exit(0)
    if mode == "other":
        print("usage: some other program")
        sys.exit(0)
    print(f"&&&& RUNNING TensorRT.trtexec [TensorRT v{release}] # {' '.join(sys.argv)}", flush=True)
    if "--help" in sys.argv:
        tell_help(release)
        return
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:])
    unknown = sorted(set(flags) - {*RELEASES[release], "versionCompatible"})
    if unknown:
        print(f"[E] Unknown option: --{unknown[0]}", file=sys.stderr)
        sys.exit(1)
    said = [f"--{name}" for name in flags]
    Path(os.environ.get("STAND_IN_SAID", os.devnull)).write_text("\n".join(sys.argv[1:]))
    if "loadEngine" in flags:
        infer(flags, mode)
    else:
        build(flags, mode)
    print(f"&&&& PASSED TensorRT.trtexec [TensorRT v{release}] # {' '.join(said)}")


def tell_help(release: int) -> None:
    print("=== Model Options ===\n  --onnx=<file>               ONNX model\n\n=== Build Options ===")
    for name in RELEASES[release]:
        print(f"  --{name}=spec{' ' * 12}Explanation that mentions --anotherFlag in passing")
    print("  --versionCompatible, --vc          Mark the engine as version compatible")
    print("&&&& PASSED TensorRT.trtexec")


def log(severity: str, message: str, stream: object = None) -> None:
    print(f"[11/21/2025-10:00:00] [{severity}] [TRT] {message}", file=stream or sys.stdout, flush=True)


def build(flags: dict[str, str], mode: str) -> None:
    print("[11/21/2025-10:00:00] [I] Compute Capability: 8.7", flush=True)
    log("I", "Start parsing network model.")
    if mode == "parse-error":
        refuse_node()
    log("V", "Original: 3 layers")
    log("V", "After dead-layer removal: 3 layers")
    log("W", "a warning on standard error", sys.stderr)
    if mode in {"out-of-memory", "disk-full"}:
        why = "Cuda Runtime (out of memory)" if mode == "out-of-memory" else "No space left on device"
        log("E", f"1: [resizingAllocator.cpp::allocate::74] Error Code 1: {why}", sys.stderr)
        sys.exit(1)
    if mode == "killed":
        Path(flags["saveEngine"]).write_bytes(b"ftrt" + bytes(20) + bytes([8, 6, 1, 6]) + b"half")
        os.kill(os.getpid(), 9)
    if mode == "flood":
        sys.stdout.write("x" * (3 << 20))
    if mode == "family":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path(os.environ["STAND_IN_CHILD"]).write_text(str(child.pid))
        mode = "hang"
    if mode == "crash":
        os.kill(os.getpid(), 11)
    if mode == "hang":
        import time

        time.sleep(600)
    pairs = count_pairs(flags["onnx"])
    if mode.startswith("at-most-") and pairs > int(mode.removeprefix("at-most-")):
        mode = "no-kernel"
    for number in range(3):
        log("V", f"=============== Computing costs for conv{number}")
    if mode == "no-kernel-for-int8" and b"QuantizeLinear" in Path(flags["onnx"]).read_bytes():
        mode = "no-kernel"
    if mode == "no-kernel":
        log("E", "10: Could not find any implementation for node conv.", sys.stderr)
        log("E", "2: [builder.cpp::buildSerializedNetwork::751] Error Code 2: Internal Error", sys.stderr)
        print("&&&& FAILED TensorRT.trtexec", file=sys.stderr)
        sys.exit(1)
    log("V", "Engine generation completed in 1.5 seconds.")
    if mode != "no-engine":
        Path(flags["saveEngine"]).write_bytes(b"ftrt" + bytes(20) + bytes([8, 6, 1, 6]) + b"a plan")
        Path(f"{flags['saveEngine']}.pairs").write_text(str(pairs))
    if "exportLayerInfo" in flags:
        Path(flags["exportLayerInfo"]).write_text('{"Layers": [{"Name": "conv"}], "Bindings": ["x", "y"]}')


def count_pairs(model: str) -> int:
    """How often the file of a model names DequantizeLinear."""
    return Path(model).read_bytes().count(b"DequantizeLinear")


def play(engine: str, mode: str) -> tuple[float, float]:
    """Milliseconds of a round of an engine, and of its launches. Every round of an engine counts in a file beside it."""
    base = 2.0 if "slow" in engine else 1.0
    if not mode.startswith(("pairs-", "launches")):
        return base, 0.1
    pairs = int(Path(f"{engine}.pairs").read_text())
    count = Path(f"{engine}.turn")
    turn = int(count.read_text()) + 1 if count.exists() else 0
    count.write_text(str(turn))
    base -= 0.01 * pairs if mode != "pairs-slower" else -0.01 * pairs
    if mode == "pairs-noisy":
        base *= 1 + 0.1 * ((turn + int(Path(engine).stem)) % 2)
    return base, 5.0 if mode == "launches" else 0.1


REFUSAL = """\
[E] [TRT] ModelImporter.cpp:771: While parsing node number 2 [QuantizeLinear -> "x_q"]:
[E] [TRT] ModelImporter.cpp:772: --- Begin node ---
[E] [TRT] ModelImporter.cpp:773: input: "x"
name: "quantize_x"
op_type: "QuantizeLinear"

[E] [TRT] ModelImporter.cpp:774: --- End node ---
[E] [TRT] ModelImporter.cpp:777: ERROR: builtin_op_importers.cpp:1220 In function QuantDequantLinearHelper:
[6] Assertion failed: shiftIsAllZeros(zeroPoint) && "TRT only supports symmetric quantization"
[E] Failed to parse onnx file
"""


def refuse_node() -> None:
    sys.stderr.write(REFUSAL)
    sys.exit(1)


def infer(flags: dict[str, str], mode: str) -> None:
    if mode == "no-inference":
        log("E", "Engine deserialization failed", sys.stderr)
        sys.exit(1)
    if "exportTimes" in flags:
        base, launch = play(flags["loadEngine"], mode)
        rows = []
        for index in range(int(flags.get("iterations", "10"))):
            compute = base + 0.01 * (index % 5)
            start = index * 3.0
            rows.append(
                f'{{ "startEnqMs" : {start}, "endEnqMs" : {start + launch}, "startH2dMs" : {start}, '
                f'"endH2dMs" : {start}, "startComputeMs" : {start}, "endComputeMs" : {start + compute}, '
                f'"startD2hMs" : {start + compute}, "endD2hMs" : {start + compute}, "h2dMs" : 0, '
                f'"computeMs" : {compute}, "d2hMs" : 0, "latencyMs" : {compute} }}'
            )
        Path(flags["exportTimes"]).write_text("[\n  " + "\n, ".join(rows) + "\n]\n")
    if "exportProfile" in flags:
        Path(flags["exportProfile"]).write_text(
            '[\n  { "count" : 10 }\n, { "name" : "conv", "timeMs" : 8.0, "averageMs" : 0.8, "medianMs" : 0.8, '
            '"percentage" : 80.0 }\n, { "name" : "relu", "timeMs" : 2.0, "averageMs" : 0.2, "medianMs" : 0.2, '
            '"percentage" : 20.0 }\n]\n'
        )
