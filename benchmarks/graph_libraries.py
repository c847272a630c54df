"""Which library should edit graphs: onnx-ir, onnx-graphsurgeon, or the protobuf messages themselves.

    python benchmarks/graph_libraries.py [--quick] [--gigabytes 2.25]

Fidelity: every model of ONNX's operator tests through each library and back without an edit; counted are failures, equal
bytes of the whole model and of its graph, and models that onnx's checker accepts afterwards. Cost: one job on a model of
several gigabytes with its weights beside it, in a process of its own: open, put an Identity in front of every MatMul, sort,
write; CPU seconds and peak memory, in turn, medians. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

LIBRARIES = ("qdqtool", "onnx-ir", "onnx-graphsurgeon")


def through_ir(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnx_ir

    return onnx_ir.to_proto(onnx_ir.from_proto(proto))


def through_surgeon(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnx_graphsurgeon

    return onnx_graphsurgeon.export_onnx(onnx_graphsurgeon.import_onnx(proto))


def through_messages(proto: onnx.ModelProto) -> onnx.ModelProto:
    """What `Edit` does to what it does not touch."""
    from qdqtool.graph.edit import Edit
    from qdqtool.graph.view import Model

    return Edit(Model(proto=proto, path=Path("model.onnx"))).finish().proto


ROUND_TRIPS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "qdqtool": through_messages,
    "onnx-ir": through_ir,
    "onnx-graphsurgeon": through_surgeon,
}


def fidelity(most: int | None) -> dict[str, dict[str, int]]:
    """Counts for each library over ONNX's operator tests."""
    from onnx.backend.test.case.node import collect_testcases

    cases = [case.model for case in collect_testcases(None) if case.model is not None][:most]
    found = {}
    for library, trip in ROUND_TRIPS.items():
        counts = dict.fromkeys(("models", "fails", "same_model", "same_graph", "valid"), 0)
        for proto in cases:
            counts["models"] += 1
            private = onnx.ModelProto.FromString(proto.SerializeToString())
            try:
                after = trip(private)
            except Exception:  # noqa: BLE001 -- that a library fails, in whatever way, is what is counted
                counts["fails"] += 1
                continue
            counts["same_model"] += after.SerializeToString(deterministic=True) == proto.SerializeToString(
                deterministic=True
            )
            counts["same_graph"] += after.graph.SerializeToString(
                deterministic=True
            ) == proto.graph.SerializeToString(deterministic=True)
            counts["valid"] += _valid(after)
        found[library] = counts
        print(library, counts, file=sys.stderr)
    return found


def _valid(proto: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError:
        return False
    return True


def large_model(path: Path, gigabytes: float) -> None:
    """A chain of MatMuls of 4096 x 4096, weights in a file beside it, written without holding them."""
    side = 4096
    count = max(2, round(gigabytes * (1 << 30) / (4 * side * side)))
    data = path.with_suffix(".data")
    rng = np.random.default_rng(0)
    nodes, tensors = [], []
    with data.open("wb") as stream:
        for at in range(count):
            offset = stream.tell()
            stream.write(rng.standard_normal((side, side), dtype=np.float32).tobytes())
            tensor = onnx.TensorProto(name=f"w{at}", data_type=onnx.TensorProto.FLOAT, dims=[side, side])
            tensor.data_location = onnx.TensorProto.EXTERNAL
            places = {"location": data.name, "offset": offset, "length": stream.tell() - offset}
            tensor.external_data.extend(
                onnx.StringStringEntryProto(key=key, value=str(value)) for key, value in places.items()
            )
            tensors.append(tensor)
            nodes.append(
                onnx.helper.make_node("MatMul", [f"x{at}", f"w{at}"], [f"x{at + 1}"], name=f"mm{at}")
            )
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, side])
        for name in ("x0", f"x{count}")
    ]
    graph = onnx.helper.make_graph(nodes, "chain", ends[:1], ends[1:], tensors)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)


def job_qdqtool(source: Path, target: Path) -> None:
    from qdqtool.graph.edit import Edit
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.graph.onnx_io.save import save

    edit = Edit(load(source))
    for node in list(edit.nodes):
        if node.op_type == "MatMul":
            same = edit.fresh(f"{node.input[0]}_same")
            edit.node("Identity", [node.input[0]], [same], name=f"{node.name}_same")
            edit.connect(node, 0, same)
    save(edit.finish(), target)


def job_ir(source: Path, target: Path) -> None:
    import onnx_ir

    model = onnx_ir.load(source)
    for node in list(model.graph):
        if node.op_type == "MatMul":
            same = onnx_ir.Node("", "Identity", [node.inputs[0]], name=f"{node.name}_same")
            node.replace_input_with(0, same.outputs[0])
            model.graph.append(same)
    model.graph.sort()
    onnx_ir.save(model, target, external_data=f"{target.name}.data")


def job_surgeon(source: Path, target: Path) -> None:
    import onnx_graphsurgeon

    graph = onnx_graphsurgeon.import_onnx(onnx.load(source))
    for node in list(graph.nodes):
        if node.op == "MatMul":
            same = onnx_graphsurgeon.Variable(f"{node.inputs[0].name}_same", dtype=np.float32)
            graph.nodes.append(
                onnx_graphsurgeon.Node(
                    "Identity", f"{node.name}_same", inputs=[node.inputs[0]], outputs=[same]
                )
            )
            node.inputs[0] = same
    graph.toposort()
    proto = onnx_graphsurgeon.export_onnx(graph)
    onnx.save(proto, target, save_as_external_data=True, location=f"{target.name}.data")


JOBS = {"qdqtool": job_qdqtool, "onnx-ir": job_ir, "onnx-graphsurgeon": job_surgeon}


def cost(source: Path, repeats: int) -> dict[str, dict[str, float]]:
    """CPU seconds and peak memory of one job, each in a process of its own, the libraries in turn."""
    taken: dict[str, list[dict[str, float]]] = {library: [] for library in LIBRARIES}
    for _ in range(repeats):
        for library in LIBRARIES:
            with tempfile.TemporaryDirectory(dir=source.parent) as folder:
                command = [
                    sys.executable,
                    __file__,
                    "--job",
                    library,
                    str(source),
                    str(Path(folder) / "out.onnx"),
                ]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            taken[library].append(json.loads(done.stdout.splitlines()[-1]))
            print(library, taken[library][-1], file=sys.stderr)
    return {
        library: {key: round(statistics.median(run[key] for run in runs), 2) for key in runs[0]}
        for library, runs in taken.items()
    }


def one_job(library: str, source: Path, target: Path) -> None:
    JOBS[library](source, target)
    used = [resource.getrusage(whom) for whom in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    written = sum(file.stat().st_size for file in target.parent.iterdir())
    print(
        json.dumps(
            {
                "cpu_s": round(sum(use.ru_utime + use.ru_stime for use in used), 2),
                "peak_mib": max(use.ru_maxrss for use in used) // 1024,
                "written_mib": written >> 20,
            }
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="50 operator tests and 0.02 GB")
    parser.add_argument("--gigabytes", type=float, default=2.25, help="of weights")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--job", nargs=3, metavar=("LIBRARY", "SOURCE", "TARGET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        one_job(options.job[0], Path(options.job[1]), Path(options.job[2]))
        return
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    kept = fidelity(50 if options.quick else None)
    with tempfile.TemporaryDirectory(prefix="graph-libraries-") as folder:
        source = Path(folder) / "large.onnx"
        large_model(source, 0.02 if options.quick else options.gigabytes)
        costs = cost(source, 1 if options.quick else options.repeats)
    print(json.dumps({"fidelity": kept, "cost": costs}))


if __name__ == "__main__":
    main()
