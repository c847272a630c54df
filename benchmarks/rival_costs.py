"""What calibration costs with other tools, on the same networks and samples, each in an environment of its own.

`measure` makes the environments on first use (some minutes and about 2 GB for nvidia-modelopt). A rival that cannot
be installed or fails says so in its figures; nothing is hidden.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import venv
from pathlib import Path
from typing import Any

PACKAGES = {
    "onnxruntime": ("onnxruntime==1.31.1", "onnx", "sympy"),
    "modelopt": ("nvidia-modelopt[onnx]==0.47.0", "onnxruntime==1.31.1"),
}
METHODS = {"onnxruntime": ("minmax", "entropy", "percentile"), "modelopt": ("max", "entropy")}
TIMEOUT_S = 3600

_BEFORE = """
    import json, resource, sys, time
    import numpy as np
    import onnxruntime
    model, data, count, method, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
    rows = np.load(data)["x"][:count]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": rows[:1]})
    began = time.perf_counter()
    for row in rows:
        session.run(None, {"x": row[None]})
    floor = time.perf_counter() - began
    del session
    out = model + ".rival.onnx"
    began = time.perf_counter()
"""
_AFTER = """
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"over_floor": round(took / floor, 2), "floor_seconds": round(floor, 2), "peak_mib": round(peak)}))
"""
_DRIVERS = {
    "onnxruntime": """
    from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.rows = iter(rows)
        def get_next(self):
            row = next(self.rows, None)
            return None if row is None else {"x": row[None]}

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


def measure(model: Path, data: Path, samples: int, folder: Path) -> dict[str, Any]:
    """Figures of every rival and method on one network."""
    found: dict[str, Any] = {}
    for rival, methods in METHODS.items():
        python = _environment(rival, folder)
        for method in methods:
            if python is None:
                found[f"{rival} {method}"] = {"failed": "cannot be installed"}
            else:
                found[f"{rival} {method}"] = _run(python, rival, method, (model, data, samples))
    return found


def _environment(rival: str, folder: Path) -> Path | None:
    """The interpreter of a rival's environment; None when it cannot be installed."""
    place = folder / f"env-{rival}"
    python = place / "bin" / "python"
    if (place / "ready").exists():
        return python
    print(f"installing {rival}", file=sys.stderr, flush=True)
    venv.create(place, with_pip=True)
    done = subprocess.run([str(python), "-m", "pip", "install", "-q", *PACKAGES[rival]], check=False)
    if done.returncode:
        return None
    (place / "ready").touch()
    return python


def _run(python: Path, rival: str, method: str, work: tuple[Path, Path, int]) -> dict[str, Any]:
    from qdqtool.calibration.session import processors

    model, data, samples = work
    code = "".join(textwrap.dedent(part) for part in (_BEFORE, _DRIVERS[rival], _AFTER))
    command = [str(python), "-c", code, str(model), str(data), str(samples), method, str(processors())]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"not finished after {TIMEOUT_S} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:200]}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
