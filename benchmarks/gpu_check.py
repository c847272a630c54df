"""Checks `--device` on a GPU: ranges, choices and times against the CPU, and against the rival's own calibration there.

    python benchmarks/gpu_check.py --split 60MiB wheels/onnxruntime_gpu-*.whl     # beforehand: parts of a wheel
    python benchmarks/gpu_check.py --device cuda --wheels wheels --out gpu_check.json
    python benchmarks/gpu_check.py --device openvino --out dry.json               # dry run on another device

Works offline, stops after --minutes (20), and goes on where it stopped: finished steps are in --out. Wheels in --wheels may lie in
parts (NAME.whl.part-000, ...), which are joined and compared with NAME.whl.sha256. They are installed into an environment of their own beside
--out, which takes everything else from the Python that runs this script; wheels of CUDA and cuDNN may lie there too. Without
--wheels the script's own Python must have the device.

Networks are *.onnx in --models, with their samples in NAME.npz beside NAME.onnx, or with random ones. Without --models, a ResNet-50, a
ViT-B/16 and a BERT-base with random weights are written. Each is calibrated on the CPU and on the device (histograms of all tensors),
quantized with the choices of `auto`, converted to FP16 (emulated on the CPU, computed by a GPU), and studied node by node. nvidia-modelopt
is measured where it is installed. The last line and --out are JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import checkout  # noqa: F401 -- puts the checkout on the path
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[1]
UNITS = {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
CHUNK = 1 << 20
"""Bytes that are read at once."""
SAMPLES = 16
QUICK_SAMPLES = 2


def split(size: str, files: list[Path]) -> None:
    """Cut files into parts beside them, with a digest of the whole."""
    number = size.upper().rstrip("B").rstrip("I")
    limit = int(float(number[:-1]) * UNITS[f"{number[-1]}IB"])
    for file in files:
        data = file.read_bytes()
        for place, start in enumerate(range(0, len(data), limit)):
            file.with_name(f"{file.name}.part-{place:03}").write_bytes(data[start : start + limit])
        file.with_name(f"{file.name}.sha256").write_text(hashlib.sha256(data).hexdigest() + "\n")
        print(f"{file.name}: {-(-len(data) // limit)} parts of at most {size}")


def join(folder: Path, target: Path) -> list[Path]:
    """All wheels of a folder, those in parts put together in `target`.

    Raises:
        SystemExit: a part is missing or damaged.
    """
    target.mkdir(parents=True, exist_ok=True)
    whole = sorted(folder.glob("*.whl"))
    for first in sorted(folder.glob("*.whl.part-000")):
        name = first.name.removesuffix(".part-000")
        if (folder / name).is_file():
            continue
        made, digest = target / name, hashlib.sha256()
        with made.open("wb") as out:
            for part in sorted(folder.glob(f"{name}.part-*")):
                data = part.read_bytes()
                digest.update(data)
                out.write(data)
        stated = (folder / f"{name}.sha256").read_text().split()[0]
        if digest.hexdigest() != stated:
            sys.exit(f"{name}: the parts do not give the file that was split; copy them again")
        whole.append(made)
    return whole


def environment(wheels: list[Path], folder: Path) -> Path:
    """A Python with these wheels, and everything else from this one; onnxruntime's own build is hidden by the wheel's."""
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.is_file():
        venv.create(folder, with_pip=False)
    site = (
        next((folder / "lib").glob("python*/site-packages"))
        if os.name != "nt"
        else folder / "Lib/site-packages"
    )
    (site / "zz_host.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages")) + "\n"
    )
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--no-deps",
        "--upgrade",
        "--target",
        str(site),
    ]
    subprocess.run([*command, *map(str, wheels)], check=True)
    return python


# --- networks --------------------------------------------------------------------------------------------------------


class Graph:
    """A network with random weights, written node by node."""

    def __init__(self, name: str, inputs: list[onnx.ValueInfoProto]) -> None:
        self.random = np.random.default_rng(0)
        self.name, self.inputs = name, inputs
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def weight(self, *shape: int) -> str:
        fan = max(1, int(np.prod(shape[1:])))
        return self.constant((self.random.standard_normal(shape) * (2 / fan) ** 0.5).astype(np.float32))

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def conv(self, x: str, before: int, after: int, kernel: int, stride: int = 1) -> str:
        pads = [kernel // 2] * 4
        return self.add(
            "Conv", x, self.weight(after, before, kernel, kernel), strides=[stride] * 2, pads=pads
        )

    def linear(self, x: str, before: int, after: int) -> str:
        return self.add(
            "Add",
            self.add("MatMul", x, self.weight(before, after)),
            self.constant(np.zeros(after, np.float32)),
        )

    def norm(self, x: str, width: int) -> str:
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return self.add("LayerNormalization", x, self.constant(ones), self.constant(zeros), axis=-1)

    def save(self, output: str, path: Path) -> Path:
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, self.name, self.inputs, [result], self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def resnet(path: Path, stages: tuple[int, ...] = (3, 4, 6, 3)) -> Path:
    """ResNet-50: bottlenecks with residual sums."""
    made = Graph("resnet", [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 224, 224])])
    x = made.add("Relu", made.conv("image", 3, 64, 7, 2))
    x = made.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width = 64
    for number, count in enumerate(stages):
        inner = 64 << number
        for block in range(count):
            stride = 2 if number and not block else 1
            y = made.add("Relu", made.conv(x, width, inner, 1))
            y = made.add("Relu", made.conv(y, inner, inner, 3, stride))
            y = made.conv(y, inner, 4 * inner, 1)
            x = x if block else made.conv(x, width, 4 * inner, 1, stride)
            x, width = made.add("Relu", made.add("Add", x, y)), 4 * inner
    x = made.add("Flatten", made.add("GlobalAveragePool", x))
    return made.save(made.linear(x, width, 1000), path)


def encoder(made: Graph, x: str, tokens: int, width: int, depth: int) -> str:
    """Transformer layers: attention of 64 channels per head, and an MLP."""
    heads = width // 64
    split_, merged = (
        made.constant(np.array([1, tokens, heads, 64])),
        made.constant(np.array([1, tokens, width])),
    )
    for _ in range(depth):
        y = made.norm(x, width)
        parts = [made.add("Reshape", made.linear(y, width, width), split_) for _ in range(3)]
        q, v = (made.add("Transpose", parts[place], perm=[0, 2, 1, 3]) for place in (0, 2))
        k = made.add("Transpose", parts[1], perm=[0, 2, 3, 1])
        scores = made.add("Mul", made.add("MatMul", q, k), made.constant(np.float32(0.125)))
        y = made.add("MatMul", made.add("Softmax", scores, axis=-1), v)
        y = made.add("Reshape", made.add("Transpose", y, perm=[0, 2, 1, 3]), merged)
        x = made.add("Add", x, made.linear(y, width, width))
        y = made.linear(made.norm(x, width), width, 4 * width)
        y = made.add("Mul", y, made.add("Sigmoid", made.add("Mul", y, made.constant(np.float32(1.702)))))
        x = made.add("Add", x, made.linear(y, 4 * width, width))
    return made.norm(x, width)


def vit(path: Path, depth: int = 12) -> Path:
    """ViT-B/16 without its class token."""
    made = Graph("vit", [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 224, 224])])
    x = made.add("Conv", "image", made.weight(768, 3, 16, 16), strides=[16, 16])
    x = made.add("Transpose", made.add("Reshape", x, made.constant(np.array([1, 768, 196]))), perm=[0, 2, 1])
    x = encoder(made, x, 196, 768, depth)
    return made.save(made.linear(made.add("ReduceMean", x, axes=[1], keepdims=0), 768, 1000), path)


def bert(path: Path, depth: int = 12) -> Path:
    """BERT-base behind its embedding, 128 tokens."""
    made = Graph("bert", [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [1, 128, 768])])
    return made.save(encoder(made, made.norm("embedding", 768), 128, 768, depth), path)


# --- steps -----------------------------------------------------------------------------------------------------------


def samples_of(model: Path, samples: int) -> str:
    """The samples in NAME.npz beside NAME.onnx, or random ones."""
    file = model.with_suffix(".npz")
    return str(file) if file.is_file() else f"random:{samples}"


def calibrate(model: Path, device: str, samples: int) -> dict[str, Any]:
    """Ranges of the calibrator percentile, the choices of auto, and seconds."""
    import qdqtool

    start = time.perf_counter()
    table = qdqtool.calibrate(
        model,
        samples_of(model, samples),
        recipe="conv-int8",
        settings={"optional": ["*"], "calibrate.method": "percentile"},
        device=device,
    )
    return {
        "seconds": round(time.perf_counter() - start, 3),
        "provider": table.provider,
        "notes": list(table.notes),
        "amax": {entry.tensor: max(entry.amax) for entry in table.ranges},
        "seen": {
            entry.tensor: max(abs(entry.low), abs(entry.high or 0.0))
            for entry in table.ranges
            if entry.low is not None
        },
    }


def compared(on_cpu: dict[str, Any], elsewhere: dict[str, Any]) -> dict[str, Any]:
    """How far two devices are apart: ranges of the calibrator, whose bins hide small differences, and largest values."""
    found: dict[str, Any] = {"speedup": round(on_cpu["seconds"] / elsewhere["seconds"], 2)}
    for kind in ("amax", "seen"):
        left, right = on_cpu[kind], elsewhere[kind]
        apart = {name: abs(right[name] / left[name] - 1) for name in left.keys() & right.keys() if left[name]}
        worst = max(apart, key=lambda name: apart[name], default="")
        found[kind] = {
            "tensors": len(apart),
            "same_tensors": left.keys() == right.keys(),
            "largest": apart.get(worst),
            "where": worst,
            "beyond_0.1_percent": sum(value > 1e-3 for value in apart.values()),
        }
    return found


def quantized(model: Path, device: str, samples: int, out: Path) -> dict[str, Any]:
    """The method that `auto` chose for each tensor, the SQNR of the outputs on the device, and seconds."""
    import qdqtool

    start = time.perf_counter()
    made = qdqtool.quantize(
        model,
        samples_of(model, samples),
        out,
        settings={"optional": ["*"]},
        recipe="conv-int8",
        device=device,
    )
    seconds = round(time.perf_counter() - start, 3)
    found = qdqtool.compare(model, out, samples_of(model, samples), device=device)
    return {
        "seconds": seconds,
        "choices": {entry.tensor: entry.method for entry in made.calibration.ranges},
        "amax": {entry.tensor: max(entry.amax) for entry in made.calibration.ranges},
        "sqnr_db": None if found.sqnr is None else round(found.sqnr.sqnr_db, 2),
        "provider": found.provider,
    }


def agreed(on_cpu: dict[str, Any], elsewhere: dict[str, Any]) -> dict[str, Any]:
    """How far two quantizations with `auto` agree: the tensors of one method, and the difference of their outputs."""
    left, right = on_cpu["choices"], elsewhere["choices"]
    differing = sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    apart = [abs(elsewhere["amax"][name] / on_cpu["amax"][name] - 1) for name in left.keys() & right.keys()]
    return {
        "tensors": len(left),
        "other_choice": differing,
        "beyond_1_percent": sum(value > 1e-2 for value in apart),
        "sqnr_db": [on_cpu["sqnr_db"], elsewhere["sqnr_db"]],
        "speedup": round(on_cpu["seconds"] / elsewhere["seconds"], 2),
    }


def input_of(model: Path) -> tuple[str, list[int]]:
    """The name and shape of the first input, free dimensions as 1."""
    info = onnx.load(str(model)).graph.input[0]
    return info.name, [dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim]


def measure_fp16(model: Path, device: str, samples: int, out: Path) -> dict[str, Any]:
    """The SQNR of the outputs in FP16: emulated on the CPU, and as the device's own kernels round."""
    import qdqtool

    qdqtool.convert(model, out)
    found = qdqtool.compare(model, out, samples_of(model, samples), device=device)
    return {
        "sqnr_db": None if found.sqnr is None else round(found.sqnr.sqnr_db, 2),
        "provider": found.provider,
    }


def measure_sensitivity(model: Path, device: str, samples: int) -> dict[str, Any]:
    """The nodes that cost most accuracy, seconds, and the largest memory of the GPU meanwhile."""
    import qdqtool

    start = time.perf_counter()
    with PeakMemory() as memory:
        found = qdqtool.sensitivity(model, samples_of(model, samples), recipe="conv-int8", device=device)
    return {
        "seconds": round(time.perf_counter() - start, 3),
        "mib": memory.largest,
        "worst": [row.node for row in sorted(found.nodes, key=lambda row: -row.share)[:10]],
    }


class PeakMemory:
    """The largest memory in use on the first GPU while this is open, in MiB; None without nvidia-smi."""

    def __init__(self) -> None:
        self.largest: int | None = None
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        if shutil.which("nvidia-smi"):
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        if self.thread.is_alive():
            self.thread.join()

    def _watch(self) -> None:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        while not self.stopped.wait(0.2):
            text = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
            if text.isdigit():
                self.largest = max(self.largest or 0, int(text))


def measure_modelopt(model: Path, device: str, samples: int, out: Path) -> dict[str, Any]:
    """NVIDIA modelopt's calibration (entropy, its default) on the device: seconds of its quantize."""
    if find_spec("modelopt") is None:
        return {"failed": "nvidia-modelopt is not installed"}
    from modelopt.onnx.quantization import quantize

    _, shape = input_of(model)
    data = np.random.default_rng(0).random((samples, *shape[1:]), np.float32)
    start = time.perf_counter()
    try:
        quantize(
            str(model),
            calibration_data=data,
            calibration_eps=["cuda:0" if device == "cuda" else device],
            output_path=str(out),
        )
    except Exception as error:  # noqa: BLE001 -- a rival that fails is a result
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    return {"seconds": round(time.perf_counter() - start, 3)}


def set_side_by_side(on_cpu: dict[str, Any], elsewhere: dict[str, Any]) -> dict[str, Any]:
    """What was measured on the two devices, side by side."""
    return {key: [on_cpu.get(key), elsewhere.get(key)] for key in {**on_cpu, **elsewhere}}


def rival(model: Path, device: str, samples: int, out: Path) -> dict[str, Any]:
    """Onnxruntime's own calibration on the device: seconds of quantize_static with minima and maxima."""
    if find_spec("sympy") is None:
        return {"failed": "onnxruntime.quantization needs sympy"}
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, quantize_static

    from qdqtool.runtime.device import provider_of

    name, shape = input_of(model)
    random = np.random.default_rng(0)

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = [{name: random.random(shape, np.float32)} for _ in range(samples)]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    start = time.perf_counter()
    try:
        quantize_static(
            str(model),
            str(out),
            Reader(),
            calibrate_method=CalibrationMethod.MinMax,
            calibration_providers=[provider_of(device).name],
        )
    except Exception as error:  # noqa: BLE001 -- a rival that fails is a result
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    return {"seconds": round(time.perf_counter() - start, 3)}


def steps(options: argparse.Namespace, work: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """All steps by name, in their order."""
    from qdqtool.backends.inventory import take_inventory

    samples = QUICK_SAMPLES if options.quick else SAMPLES
    yield "machine", machine
    yield "doctor", lambda: {item.name: f"{item.state}: {item.detail}" for item in take_inventory().items}
    models = networks(options, work)
    devices = (options.device, "cpu")
    # the first session loads the device's libraries, some seconds that belong to no network
    yield f"{options.device} started", lambda: {"seconds": calibrate(models[0], options.device, 1)["seconds"]}
    # what answers most in a minute comes first: the time may run out
    for model in models:
        for device in devices:
            yield (
                f"{model.stem} calibrated on {device}",
                lambda model=model, device=device: calibrate(model, device, samples),
            )
            yield (
                f"{model.stem} by onnxruntime on {device}",
                lambda model=model, device=device: rival(model, device, samples, work / "rival.onnx"),
            )
    for model in models:
        for device in devices:
            out = work / f"{model.stem}.{device.replace(':', '-')}.qdq.onnx"
            yield (
                f"{model.stem} quantized on {device}",
                lambda model=model, device=device, out=out: quantized(model, device, samples, out),
            )
            yield (
                f"{model.stem} in FP16 on {device}",
                lambda model=model, device=device: measure_fp16(model, device, samples, work / "fp16.onnx"),
            )
    for model in models:
        for device in devices:
            yield (
                f"{model.stem} by modelopt on {device}",
                lambda model=model, device=device: measure_modelopt(
                    model, device, samples, work / "modelopt.onnx"
                ),
            )
    for model in models:
        for device in devices:
            yield (
                f"{model.stem} studied on {device}",
                lambda model=model, device=device: measure_sensitivity(model, device, samples),
            )


def machine() -> dict[str, Any]:
    """The processors, the GPU, and the releases that the figures belong to."""
    import onnxruntime

    gpu = ""
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpu = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return {"cpus": os.cpu_count(), "gpu": gpu, "onnxruntime": onnxruntime.__version__}


def networks(options: argparse.Namespace, work: Path) -> list[Path]:
    """The models to check."""
    if options.models is not None:
        return sorted(options.models.glob("*.onnx"))
    small = {"resnet50": (1, 1, 1, 1), "vit": 1, "bert": 1} if options.quick else {}
    made = []
    for name, make in (("resnet50", resnet), ("vit", vit), ("bert", bert)):
        path = work / f"{name}.onnx"
        if not path.is_file():
            make(path, *([small[name]] if small else []))  # type: ignore[operator]
        made.append(path)
    return made


def check(options: argparse.Namespace) -> dict[str, Any]:
    """Do all steps that time allows; what is in --out already is not done again."""
    out, work = options.out, options.out.with_suffix(".work")
    work.mkdir(parents=True, exist_ok=True)
    found = (
        json.loads(out.read_text())
        if out.is_file()
        else {"device": options.device, "quick": options.quick, "steps": {}}
    )
    if (found["device"], found["quick"]) != (options.device, options.quick):
        sys.exit(f"{out} holds another check; name another file with --out")
    began, skipped = time.monotonic(), []
    for name, act in steps(options, work):
        if name in found["steps"]:
            continue
        if time.monotonic() - began > 60 * options.minutes:
            skipped.append(name)
            continue
        print(name, flush=True)
        found["steps"][name] = act()
        out.write_text(json.dumps(found, indent=1) + "\n")
    done = found["steps"]
    judges = (
        ("calibrated", compared, "compared"),
        ("quantized", agreed, "agreed"),
        ("in FP16", set_side_by_side, "fp16"),
        ("studied", set_side_by_side, "studied"),
        ("by modelopt", set_side_by_side, "modelopt"),
    )
    for kind, judge, key in judges:
        mine, theirs = f" {kind} on cpu", f" {kind} on {options.device}"
        names = [name.removesuffix(mine) for name in done if name.endswith(mine)]
        pairs = {name: (done[name + mine], done[name + theirs]) for name in names if name + theirs in done}
        found[key] = {name: judge(*pair) for name, pair in pairs.items()}
    found["left"] = skipped
    out.write_text(json.dumps(found, indent=1) + "\n")
    return found


def main() -> None:
    """Split wheels, or check a device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, help="with --split: files to cut")
    parser.add_argument("--split", help="cut files into parts of at most this size: 60MiB")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install, whole or in parts")
    parser.add_argument("--models", type=Path, help="folder of *.onnx; random networks without one")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--quick", action="store_true", help="networks of one layer, two samples")
    options = parser.parse_args()
    if options.split:
        split(options.split, options.files)
        return
    if options.wheels is not None:
        work = options.out.with_suffix(".work")
        python = environment(join(options.wheels, work / "wheels"), work / "environment")
        rest = [word for word in sys.argv[1:] if word not in {"--wheels", str(options.wheels)}]
        paths = {**os.environ, "PYTHONPATH": str(ROOT)}
        sys.exit(subprocess.run([str(python), __file__, *rest], check=False, env=paths).returncode)
    found = check(options)
    summary = {name: value for name, value in found.items() if name != "steps"}
    print(json.dumps({**summary, "done": len(found["steps"])}))


if __name__ == "__main__":
    main()
