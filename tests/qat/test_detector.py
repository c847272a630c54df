"""The detector recipe: two heads, a loss and a metric of its own, and targets that are no class labels."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from qdqtool.backends.torch_qat.data import Feed  # noqa: E402
from qdqtool.backends.torch_qat.flat import join_batches, pick_samples  # noqa: E402
from qdqtool.cli.app import run as command  # noqa: E402
from qdqtool.core.kinds import QAT  # noqa: E402
from qdqtool.errors import InputFileError, UsageError  # noqa: E402
from tests.qat.material import HERE  # noqa: E402

EXAMPLE = HERE.parents[1] / "recipes" / "examples" / "qat_detector" / "network.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("detector_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["detector_example"] = module
    spec.loader.exec_module(module)
    return module


def perfect(example, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a detector returns that finds every box exactly."""
    count = len(targets)
    scores = torch.full((count, example.CLASSES, example.CELLS, example.CELLS), -20.0)
    boxes = torch.zeros(count, 4, example.CELLS, example.CELLS)
    for image, row in zip(*torch.nonzero(targets[..., 4] >= 0, as_tuple=True), strict=True):
        left, top, right, bottom, kind = targets[image, row].tolist()
        column, line = (
            int((low + high) / 2 / example.STRIDE) for low, high in ((left, right), (top, bottom))
        )
        x, y = ((cell + 0.5) * example.STRIDE for cell in (column, line))
        scores[image, int(kind), line, column] = 20.0
        sides = torch.tensor([x - left, y - top, right - x, bottom - y])
        boxes[image, :, line, column] = sides / 8
    return {"scores": scores, "boxes": boxes}


@pytest.fixture(scope="module")
def targets(example) -> torch.Tensor:
    """Scenes whose shapes lie in cells far from each other, so that the best possible detector finds all."""
    boxes = torch.from_numpy(example.data("validate")[1])
    centres = (boxes[..., :2] + boxes[..., 2:4]) / 2 / example.STRIDE
    far = (centres[:, :, None] - centres[:, None]).abs().amax(-1) + 99 * torch.eye(example.MOST)
    apart = (far >= 2) | (boxes[:, :, None, 4] < 0) | (boxes[:, None, :, 4] < 0)
    return boxes[apart.flatten(1).all(1)]


def test_a_detector_that_finds_every_box_has_full_precision(example, targets: torch.Tensor) -> None:
    assert len(targets) > 50
    assert example.mean_average_precision(perfect(example, targets), targets) == pytest.approx(100)


def test_missed_boxes_wrong_classes_and_shifted_edges_cost_precision(example, targets: torch.Tensor) -> None:
    outputs = perfect(example, targets)
    swapped = {**outputs, "scores": outputs["scores"].roll(1, dims=1)}
    assert example.mean_average_precision(swapped, targets) < 5
    small = {**outputs, "boxes": outputs["boxes"] * 0.4}
    assert example.mean_average_precision(small, targets) < 5
    half = {**outputs, "scores": outputs["scores"].clone()}
    half["scores"][: len(targets) // 2] = -20.0
    assert example.mean_average_precision(half, targets) == pytest.approx(50, abs=8)


def test_the_loss_is_smallest_where_every_box_is_found(example, targets: torch.Tensor) -> None:
    outputs = perfect(example, targets)
    best = float(example.loss(outputs, targets))
    assert best < 0.02
    assert float(example.loss({**outputs, "boxes": outputs["boxes"] * 0.8}, targets)) > best + 0.1
    assert float(example.loss({**outputs, "scores": -outputs["scores"]}, targets)) > best + 1


def test_the_same_scene_is_drawn_from_the_same_seed(example) -> None:
    first, second = example.scene(7), example.scene(7)
    assert all((left == right).all() for left, right in zip(first, second, strict=True))
    assert (example.scene(8)[0] != first[0]).any()


@pytest.mark.skipif(importlib.util.find_spec("tensorrt_rtx") is None, reason="building needs the extra rtx")
@pytest.mark.slow
def test_the_recipe_measures_its_own_metric_on_all_three_models(tmp_path: Path) -> None:
    assert command(["qat", "run", "qat-detector", "--set", "qat.epochs=3", "--out", str(tmp_path)]) == 0
    result = QAT.read(tmp_path / "qat.json")
    original, ptq, qat = result.rows
    assert result.metric == "mean_average_precision"
    assert result.samples == 400
    assert result.untrained == ()
    for row in result.rows:
        assert row.value is not None
        assert row.low is not None
        assert row.high is not None
        assert row.low < row.value < row.high
    assert original.value > qat.value > ptq.value + 5
    assert qat.change_low > ptq.change_high
    assert qat.nodes_int8 == qat.nodes_total == 11


def test_targets_of_any_structure_reach_the_loss() -> None:
    images = torch.rand(10, 3)
    targets = {"boxes": torch.rand(10, 2, 4), "kinds": torch.arange(10)}
    feed = Feed(lambda _: (images, targets), "train", batch=4, seed=0)
    assert len(feed) == 3
    batches = list(feed.batches())
    assert [len(batch["boxes"]) for _, batch in batches] == [4, 4, 2]
    columns, _ = feed.gathered(5)
    assert len(columns[0]) == 5
    assert join_batches([batch for _, batch in batches], [4, 4, 2])["kinds"].tolist() == list(range(10))
    pairs = [
        (image, {"boxes": box, "kind": kind})
        for image, box, kind in zip(images, targets["boxes"], range(10), strict=True)
    ]

    class Pairs:
        def __len__(self) -> int:
            return len(pairs)

        def __getitem__(self, row: int):
            return pairs[row]

    (_, first), *_ = Feed(lambda _: Pairs(), "train", batch=4, seed=0).batches()
    assert first["boxes"].shape == (4, 2, 4)
    assert first["kind"].tolist() == [0, 1, 2, 3]
    with pytest.raises(InputFileError, match="inputs for"):
        Feed(lambda _: (images, torch.arange(9)), "train", batch=4, seed=0)


def test_boxes_of_each_picture_are_joined_over_batches() -> None:
    boxes = [{"boxes": torch.full((number % 3, 4), float(number))} for number in range(10)]
    joined = join_batches([boxes[:4], boxes[4:7], boxes[7:8], boxes[8:]], [4, 3, 1, 2])
    assert [len(entry["boxes"]) for entry in joined] == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert [entry["boxes"].tolist() for entry in pick_samples(joined, [7, 2], 10)] == [
        [[7.0] * 4],
        [[2.0] * 4] * 2,
    ]


@pytest.mark.parametrize("rows", [(5, 5), (5, 3)])
def test_boxes_without_a_picture_are_not_lost_silently(rows: tuple[int, int]) -> None:
    batches = [{"boxes": torch.rand(count, 4)} for count in rows]
    with pytest.raises(UsageError, match=r"shape \(5, 4\) in a batch of 2 has no row per sample"):
        join_batches(batches, [2, 2])
