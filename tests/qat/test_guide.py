"""The Python of the guide to training is run as it stands there, on a small network."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from tests.docs.test_pages import NEED_TORCH, blocks  # noqa: E402
from tests.qat import networks  # noqa: E402


@pytest.mark.rtx
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("page", sorted(NEED_TORCH))
def test_the_python_of_the_guide_trains_exports_and_builds(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the guide builds engines: qdqtool[rtx]")
    monkeypatch.chdir(tmp_path)
    images, labels = (torch.from_numpy(array)[:64] for array in networks.images("train"))
    given = {
        "torch": torch,
        "network": networks.residual(),
        "example_inputs": images[:1],
        "loader": DataLoader(TensorDataset(images, labels), batch_size=16),
        "criterion": functional.cross_entropy,
        "epochs": 2,
    }
    exec(compile("".join(blocks(page, "python")), page, "exec"), given)
    assert {path.name for path in tmp_path.glob("*.onnx")} == {"model.qdq.onnx", "model.fp8.onnx"}
    assert "{'fp8'}" in capsys.readouterr().out
