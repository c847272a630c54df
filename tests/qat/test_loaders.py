"""Samples as torch gives them: every form of a DataLoader gives the ranges of the same array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset  # noqa: E402

import qdqtool  # noqa: E402
from qdqtool.errors import UsageError  # noqa: E402
from tests.shared import ROOT  # noqa: E402

DIGITS = ROOT / "recipes" / "examples" / "digits"
MODEL = DIGITS / "digits.onnx"
IMAGES = torch.from_numpy(np.load(DIGITS / "calibration.npz")["image"][:24])
LABELS = torch.arange(24) % 10


class Named(Dataset):
    """Samples as dicts, with their labels."""

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"image": IMAGES[number], "label": int(LABELS[number])}


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(IMAGES)


FORMS = {
    "batches": lambda: DataLoader(TensorDataset(IMAGES), batch_size=8),
    "an odd last batch": lambda: DataLoader(TensorDataset(IMAGES), batch_size=7),
    "no batches": lambda: DataLoader(TensorDataset(IMAGES), batch_size=None),
    "labels": lambda: DataLoader(TensorDataset(IMAGES, LABELS), batch_size=8),
    "dicts": lambda: DataLoader(Named(), batch_size=4),
    "a stream": lambda: DataLoader(Streamed(), batch_size=4),
    "gradients": lambda: DataLoader(TensorDataset(IMAGES.clone().requires_grad_()), batch_size=8),
    "channels last": lambda: DataLoader(TensorDataset(IMAGES.to(memory_format=torch.channels_last))),
    "doubles": lambda: DataLoader(TensorDataset(IMAGES.double()), batch_size=8),
    "a generator": lambda: (batch for batch in DataLoader(TensorDataset(IMAGES), batch_size=8)),
    "a tensor": lambda: IMAGES,
    "a data set": lambda: TensorDataset(IMAGES),
    "another order": lambda: DataLoader(TensorDataset(IMAGES.flip(0)), batch_size=8),
}


def ranges(samples: object) -> dict[str, tuple[float, ...]]:
    table = qdqtool.calibrate(MODEL, samples, settings={"calibrate.method": "max"})
    return {name: entry.amax for name, entry in table.by_tensor().items()}


@pytest.fixture(scope="module")
def expected() -> dict[str, tuple[float, ...]]:
    return ranges(IMAGES.numpy())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_ranges_of_the_array(form: str, expected: dict[str, tuple[float, ...]]) -> None:
    assert ranges(FORMS[form]()) == expected


@pytest.mark.parametrize("make", [lambda: IMAGES.to("meta"), IMAGES.to_sparse])
def test_a_tensor_that_holds_no_array_is_told(make: Any) -> None:
    with pytest.raises(UsageError, match="Tensor cannot be read as an array"):
        ranges([make()])
