"""Commands that write a model keep the function of networks that nobody thought of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from qdqtool.graph.onnx_io import deferred, walk
from tests.generated import law, zero_points
from tests.generated.draft import run
from tests.generated.networks import network
from tests.generated.steps import STEPS

FEW, MANY = 60, 1060
SLICE = 100
"""Networks of one test of the many."""
_SLICES = [range(start, start + SLICE) for start in range(FEW, MANY, SLICE)]


def _check(seeds: range, folder: Path) -> None:
    for seed in seeds:
        one = network(seed)
        for command in law.commands_of(seed):
            said = law.broken(one, command, folder)
            if said and not law.known(one, said):
                short = law.shortest(one, command, folder)
                pytest.fail(f"{command!r} of {one}: {said}; the shortest with a fault: {short}")


def test_commands_keep_the_function_of_generated_networks(tmp_path: Path) -> None:
    _check(range(FEW), tmp_path)


def test_weights_that_wait_in_a_file_do_not_outlive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model in memory is written to a folder that goes with the call; here its weights wait there however small."""
    monkeypatch.setattr(deferred, "FROM", 0)
    monkeypatch.setattr(deferred, "HEAVY", 0)
    monkeypatch.setattr(walk, "_HEAVY", 16)
    for seed, command in enumerate(sorted(law.COMMANDS.keys() - {"prepare"})):
        one = next(
            one for one in map(network, range(100 * seed, 100 * seed + 100)) if one.steps[0] == "convolution"
        )
        said = law.broken(one, command, tmp_path, in_memory=True)
        assert said is None or law.known(one, said), (command, str(one), said)


def test_constants_compute_what_zero_points_do_in_generated_networks(tmp_path: Path) -> None:
    for seed in range(FEW):
        said = zero_points.broken(network(seed), tmp_path)
        assert said is None, (seed, network(seed).steps, said)


@pytest.mark.slow
def test_constants_compute_what_zero_points_do_in_many_generated_networks(tmp_path: Path) -> None:
    for seed in range(FEW, MANY // 4):
        said = zero_points.broken(network(seed), tmp_path)
        assert said is None, (seed, network(seed).steps, said)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", _SLICES, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_commands_keep_the_function_of_many_generated_networks(seeds: range, tmp_path: Path) -> None:
    _check(seeds, tmp_path)


def test_the_same_number_makes_the_same_network_and_a_shorter_one_is_its_start() -> None:
    whole = network(7)
    assert network(7).proto == whole.proto
    for steps in range(1, len(whole.steps)):
        start = network(7, steps)
        assert start.steps == whole.steps[:steps]
        nodes = [node for node in start.proto.graph.node if "echo" not in node.output]
        assert nodes == list(whole.proto.graph.node)[: len(nodes)]


def test_generated_networks_run_and_every_step_and_opset_occurs() -> None:
    steps, opsets = Counter[str](), set[int]()
    for seed in range(200):
        one = network(seed)
        steps.update(one.steps)
        opsets.add(one.proto.opset_import[0].version)
        for feeds in one.samples:
            assert run(one.proto, feeds)
    assert {step.__name__ for step in STEPS} == steps.keys()
    assert opsets == set(range(7, 26))


def test_a_broken_command_is_found_and_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubles(one: law.Network, source: Path, out: Path) -> None:
        proto = law.onnx.load(source)
        for tensor in proto.graph.initializer:
            if tensor.data_type == law.onnx.TensorProto.FLOAT and tensor.raw_data:
                tensor.raw_data = (law.np.frombuffer(tensor.raw_data, law.np.float32) * 2).tobytes()
        law.onnx.save(proto, out)

    monkeypatch.setitem(law.COMMANDS, "doubles", law.Command(doubles, law.EXACT_DB))
    one = next(one for one in map(network, range(50)) if one.steps[0] == "convolution" and len(one.steps) > 3)
    assert "dB of at least 80" in (law.broken(one, "doubles", tmp_path) or "")
    assert len(law.shortest(one, "doubles", tmp_path).steps) < len(one.steps)
