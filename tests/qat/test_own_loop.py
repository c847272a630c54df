"""The example of a training loop of one's own, in one process and in two, and what two ranks agree on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from torch import distributed  # noqa: E402

import qdqtool  # noqa: E402
from qdqtool import qat  # noqa: E402
from qdqtool.core.findings import Severity  # noqa: E402
from qdqtool.core.kinds import CALIBRATION  # noqa: E402
from tests.qat.material import HERE  # noqa: E402
from tests.qat.networks import images, residual  # noqa: E402

ROOT = HERE.parents[1]
EXAMPLE = ROOT / "recipes" / "examples" / "qat_own_loop" / "train.py"
RANK = """
import sys
from pathlib import Path
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from qdqtool import qat
from qdqtool.core.kinds import CALIBRATION
from qdqtool.errors import QdqError
from tests.qat.networks import images, residual

distributed.init_process_group("gloo")
rank, folder = distributed.get_rank(), Path(sys.argv[1])
pixels = torch.from_numpy(images("train")[0]) * torch.linspace(0.5, 2, 48)[:, None, None, None]
mine = pixels[24 * rank : 24 * rank + 24]
model = qat.prepare(residual(), pixels[:1], settings=sys.argv[2:])
try:
    qat.calibrate(model, [mine[:, :2]])
except QdqError:
    (folder / f"refused-{rank}").touch()
CALIBRATION.write(folder / f"start-{rank}.json", qat.calibrate(model, [mine]))
parallel = DistributedDataParallel(model)
optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
parallel.train()
model.freeze_norms()
for _ in range(2):
    loss = parallel(mine).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
CALIBRATION.write(folder / f"trained-{rank}.json", model.trained())
if rank == 0:
    qat.export(parallel, folder / "model.onnx")
distributed.barrier()
distributed.destroy_process_group()
"""


def run_ranks(*words: str) -> list[str]:
    """What two processes of one group print; each is ended by its own id if it does not end by itself."""
    # As under torchrun, the process that starts the ranks holds the store, so no port is chosen and then lost.
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "tests",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    with ExitStack() as stack:
        ranks = []
        for rank in range(2):
            process = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-W", "ignore", *words],
                env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=ROOT,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            ranks.append(process)
        told, late = [], False
        for rank in ranks:
            try:
                told.append(rank.communicate(timeout=10 if late else 240)[0])
            except subprocess.TimeoutExpired:
                late = True
                rank.send_signal(signal.SIGABRT)  # the fault handler prints where each thread stands
                told.append(rank.communicate()[0])
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(told)
    return told


def assert_sound(path: Path) -> None:
    findings = qdqtool.lint(path).findings
    assert [entry for entry in findings if entry.severity is Severity.ERROR] == []


def assert_trained(told: str) -> None:
    found = re.search(r"calibrated ([\d.]+)  trained ([\d.]+)", told)
    assert found, told
    assert float(found[2]) > float(found[1]) + 2


@pytest.mark.parametrize("method", ["max", "entropy"])
def test_two_ranks_calibrate_as_one_process_would_and_stay_equal(tmp_path: Path, method: str) -> None:
    settings = f"calibrate.method={method}"
    run_ranks("-c", RANK, str(tmp_path), settings)
    # Wrong samples are refused on both, so that none waits for the other.
    assert {path.name for path in tmp_path.glob("refused-*")} == {"refused-0", "refused-1"}
    pixels = torch.from_numpy(images("train")[0]) * torch.linspace(0.5, 2, 48)[:, None, None, None]
    alone = qat.calibrate(qat.prepare(residual(), pixels[:1], settings=[settings]), [pixels])
    first, second = (CALIBRATION.read(tmp_path / f"start-{rank}.json") for rank in range(2))
    assert first == second
    assert first.ranges == alone.ranges
    assert first.samples == 48
    trained, other = (CALIBRATION.read(tmp_path / f"trained-{rank}.json") for rank in range(2))
    assert trained.ranges == other.ranges
    assert trained.ranges != first.ranges
    assert_sound(tmp_path / "model.onnx")


def test_the_example_wins_back_what_calibration_lost(tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    words = [sys.executable, str(EXAMPLE), "--out", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert_trained(done.stdout)
    assert_sound(out)


def test_the_example_trains_on_two_processes(tmp_path: Path) -> None:
    out = tmp_path / "model.onnx"
    told = run_ranks(str(EXAMPLE), "--out", str(out))
    assert_trained(told[0])
    assert "calibrated" not in told[1]
    assert_sound(out)


def test_the_loop_of_the_guide_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names that it leaves to the reader: a network, its inputs and targets, and a criterion."""
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / "docs" / "guides" / "qat.md").read_text("utf-8")
    (block,) = re.findall(r"^```python\n(from qdqtool import qat\n.*?)^```", guide, re.MULTILINE | re.DOTALL)
    inputs = torch.from_numpy(images("train")[0])
    network = residual()
    with torch.no_grad():
        targets = network(inputs)
    given = {
        "torch": torch,
        "network": network,
        "example_inputs": inputs[:1],
        "loader": [(inputs[:24], targets[:24]), (inputs[24:], targets[24:])],
        "criterion": torch.nn.functional.mse_loss,
        "epochs": 2,
    }
    exec(compile(block, "qat.md", "exec"), given)
    audited = qdqtool.audit("model.qdq.onnx", qdqtool.build("model.qdq.onnx"))
    assert all(verdict.precision.value == "int8" for verdict in audited.verdicts)
