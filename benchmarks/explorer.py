"""What the engine explorer costs: seconds and memory of reading large layer information, size and first paint of the page.

    python benchmarks/explorer.py [--quick] [--megabytes 500] [--layers 1000]

The layer information is made up: INT8 residual blocks in the inspector's JSON, repeated until the file is as large as
wanted. Each figure comes from a process of its own, so that its peak is its own. The first paint needs selenium,
chromium and chromedriver; without them it is left out. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkout  # noqa: F401 -- for the imports from the project

PAINTED = "return performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)[0]"
INT8 = "Thirty-two wide channel vectorized row major Int8 format"
HALF = "Channel major FP16 format where channel % 8 == 0"
CONVOLUTION = {
    "LayerType": "CaskConvolution",
    "ParameterType": "Convolution",
    "Kernel": [3, 3],
    "PrePadding": [1, 1],
    "PostPadding": [1, 1],
    "Stride": [1, 1],
    "OutMaps": 64,
    "Groups": 1,
    "Weights": {"Type": "Int8", "Count": 36864},
    "Bias": {"Type": "Float", "Count": 64},
    "TacticName": "sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32_tensor16x8x32_t1r3s3",
    "StreamId": 0,
}


def tensor(name: str, words: str = INT8) -> dict[str, Any]:
    return {"Name": name, "Location": "Device", "Dimensions": [1, 64, 56, 56], "Format/Datatype": words}


def layers() -> Iterator[dict[str, Any]]:
    """Residual blocks of two convolutions whose sum is written in FP16 and turned back into INT8, without end."""
    last, block = "image", 0
    while True:
        inside, summed, back = (f"{block}.{word}" for word in ("inside", "sum", "back"))
        first = f"layer{block}.conv1.weight + QuantizeLinear_{block} + Conv_{block} + Relu_{block}"
        second = f"layer{block}.conv2.weight + QuantizeLinear_{block}b + Conv_{block}b + Add_{block} + Relu_{block}b"
        yield {"Name": first, **CONVOLUTION, "Inputs": [tensor(last)], "Outputs": [tensor(inside)]}
        yield {
            "Name": second,
            **CONVOLUTION,
            "Inputs": [tensor(inside), tensor(last)],
            "Outputs": [tensor(summed, HALF)],
        }
        yield {
            "Name": f"QuantizeLinear_{block}c",
            "LayerType": "Reformat",
            "Inputs": [tensor(summed, HALF)],
            "Outputs": [tensor(back)],
            "Origin": "QDQ",
        }
        last, block = back, block + 1


def written(path: Path, *, count: int | None = None, size: int | None = None) -> Path:
    """A file of `count` layers, or of at least `size` bytes."""
    with path.open("w", encoding="utf-8") as stream:
        held = stream.write('{"Layers": [')
        for number, layer in enumerate(layers()):
            if number == count or (size is not None and held >= size):
                break
            held += stream.write((", " if number else "") + json.dumps(layer))
        stream.write('], "Bindings": ["image"]}')
    return path


def read_once(path: Path) -> dict[str, float]:
    """Seconds and peak MiB of reading `path` in this process."""
    from qdqtool.engine import read

    before = time.process_time(), time.perf_counter()
    engine = read(path)
    return {
        "layers": len(engine.layers),
        "cpu_s": time.process_time() - before[0],
        "wall_s": time.perf_counter() - before[1],
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def apart(path: Path) -> dict[str, float]:
    """`read_once` in a process of its own."""
    command = [sys.executable, __file__, "--read", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def page_of(path: Path, page: Path) -> dict[str, float]:
    """Seconds and megabytes of the report page of the engine at `path`."""
    from qdqtool.cli.app import run

    before = time.perf_counter()
    run(["report", str(path), "--out", str(page)])
    return {"page_s": time.perf_counter() - before, "page_mb": page.stat().st_size / 1e6}


def paint(page: Path) -> dict[str, float]:
    """Milliseconds until the page shows something, and until it can be used."""
    try:
        from selenium import webdriver
        from selenium.webdriver.support.wait import WebDriverWait
    except ImportError:
        return {}
    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options)
    try:
        browser.get(page.as_uri())
        painted = WebDriverWait(browser, 60).until(lambda page: page.execute_script(PAINTED))
        ready = browser.execute_script(
            "return performance.timing.loadEventEnd - performance.timing.navigationStart"
        )
    finally:
        browser.quit()
    return {"first_paint_ms": painted, "ready_ms": ready}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--layers", type=int, default=1000)
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="5 MB and 50 layers")
    given = parser.parse_args()
    if given.quick:
        given.megabytes, given.layers = 5, 50
    if given.read:
        print(json.dumps(read_once(given.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        large = apart(written(Path(folder) / "large.json", size=given.megabytes * 1_000_000))
        engine = written(Path(folder) / "engine.json", count=given.layers)
        page = Path(folder) / "report.html"
        shown = {**apart(engine), **page_of(engine, page), **paint(page)}
    for title, figures in ((f"{given.megabytes} MB", large), (f"{given.layers} layers", shown)):
        print(title, ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    print(json.dumps({"large": large, "page": shown}))


if __name__ == "__main__":
    main()
