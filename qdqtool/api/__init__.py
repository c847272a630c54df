"""The functions of the command line as typed calls that take and return objects.

    import qdqtool

    report = qdqtool.run("model.onnx", samples="calibration/", out="runs/first")
    report.summary.nodes_int8, report.fallbacks

or step by step, with nothing written:

    quantized = qdqtool.quantize("model.onnx", samples="calibration/")
    half = qdqtool.convert(quantized, samples="calibration/")
    engine = qdqtool.build(half)
    audit = qdqtool.audit(half, engine)
    log = qdqtool.parse_log(engine)
    comparison = qdqtool.compare("model.onnx", half, "evaluation/", labels="labels.npy")
    half.save("model.int8.onnx"), engine.save("engine")

Models are files, `onnx.ModelProto`, `onnx_graphsurgeon.Graph` or the result of another call; samples are arrays,
feeds, data loaders, calibration readers, functions or files. Results are frozen; they have `.save()`, `.to_dict()`,
`.to_dataframe()` and `.plot()`, and show themselves as tables in a notebook. Nothing is written unless a path is
given. Mistakes raise `qdqtool.errors.QdqError` with the problem, its place and the fix. All calls may be made from
many threads.
"""

from qdqtool.api.engines import audit, build, diff, fix, parse_log, read_engine
from qdqtool.api.models import calibrate, convert, insert, lint, place, predict, quantize, repair
from qdqtool.api.runs import compare, run, sensitivity, sweep

__all__ = [
    "audit",
    "build",
    "calibrate",
    "compare",
    "convert",
    "diff",
    "fix",
    "insert",
    "lint",
    "parse_log",
    "place",
    "predict",
    "quantize",
    "read_engine",
    "repair",
    "run",
    "sensitivity",
    "sweep",
]
