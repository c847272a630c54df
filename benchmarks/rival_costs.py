"""What calibration costs with other tools, on the same networks and samples, each in an environment of its own.

`measure` makes the environments on first use (some minutes and about 2 GB for nvidia-modelopt). A rival that cannot
be installed or fails says so in its figures; nothing is hidden.
"""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from environment import rival

METHODS = {"onnxruntime": ("minmax", "entropy", "percentile"), "modelopt": ("max", "entropy")}
TIMEOUT_S = 3600

_BEFORE = """
    import json, re, sys, time
    import numpy as np
    import onnxruntime
    model, data, method, *numbers = sys.argv[1:]
    count, batch, threads = map(int, numbers)
    rows = np.load(data)["x"][:count]
    batches = [rows[start : start + batch] for start in range(0, count, batch)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": batches[0]})
    began = time.perf_counter()
    for fed in batches:
        session.run(None, {"x": fed})
    floor = time.perf_counter() - began
    del session
    out = model + ".rival.onnx"
    began = time.perf_counter()
"""
_AFTER = """
    took = time.perf_counter() - began
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
    print(json.dumps({"over_floor": round(took / floor, 2), "floor_seconds": round(floor, 2), "peak_mib": round(peak)}))
"""
_DRIVERS = {
    "onnxruntime": """
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.fed = iter(batches)
        def get_next(self):
            fed = next(self.fed, None)
            return None if fed is None else {"x": fed}

    names = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    quantize_static(
        model, out, Reader(), quant_format=QuantFormat.QDQ, per_channel=True, activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod[names[method]],
        extra_options={"ActivationSymmetric": True},
    )
    """,
    "modelopt": """
    from modelopt.onnx.quantization import quantize
    quantize(model, calibration_data={"x": rows}, calibration_method=method, output_path=out, quantize_mode="int8",
             calibration_eps=["cpu"])
    """,
}


def measure(model: Path, data: Path, *, samples: int, batch: int, folder: Path) -> dict[str, Any]:
    """Figures of every rival and method on one network; modelopt chooses its batches itself."""
    found: dict[str, Any] = {}
    for name, methods in METHODS.items():
        python = rival(folder, name)
        for method in methods:
            words = (str(model), str(data), method, str(samples), str(batch))
            failed = {"failed": "cannot be installed"}
            found[f"{name} {method}"] = failed if python is None else _run(python, name, words)
    return found


def _run(python: Path, rival: str, words: tuple[str, ...]) -> dict[str, Any]:
    from qdqtool.platform import processors

    code = "".join(textwrap.dedent(part) for part in (_BEFORE, _DRIVERS[rival], _AFTER))
    command = [str(python), "-c", code, *words, str(processors())]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"not finished after {TIMEOUT_S} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
