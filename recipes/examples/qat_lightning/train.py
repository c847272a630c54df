"""Quantization-aware training with Lightning, on one process or several.

    python recipes/examples/qat_lightning/train.py --out runs/lightning
    torchrun --nproc-per-node 2 recipes/examples/qat_lightning/train.py --out runs/lightning

Needs `pip install 'qdqtool[qat]' lightning`. The network and its data are those of `../qat_digits`. It trains in bfloat16
autocast, accumulates two batches per step, averages weights (EMA), takes half of the loss from the float network, and
writes a checkpoint after every epoch: started again with more epochs, it goes on from the last one.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from qdqtool import qat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "qat_digits"))
from network import data
from network import model as trained_float_network

RECIPE = {"place.per_channel": False, "calibrate.method": "percentile", "calibrate.percentile": 99.99}


def dataset(split: str) -> TensorDataset:
    return TensorDataset(*map(torch.from_numpy, data(split)))


class Calibration(Callback):
    """Calibrates when the processes know each other, and before weights are averaged: put it first."""

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, **_: Any) -> None:
        part = slice(trainer.global_rank, 320, trainer.world_size)
        qat.calibrate(pl_module.model, DataLoader(TensorDataset(*dataset("train")[part]), batch_size=64))


class Training(lightning.LightningModule):
    """Half of the loss is the distance to the float network's outputs."""

    def __init__(self) -> None:
        super().__init__()
        network = trained_float_network()
        self.teacher = copy.deepcopy(network).requires_grad_(False)
        self.model = qat.prepare(network, dataset("train")[:1][0], "conv-int8", settings=RECIPE)
        self.schedule = qat.FreezeSchedule(norms=0, scales=5)

    def on_train_epoch_start(self) -> None:
        self.teacher.eval()
        self.schedule.apply(self.model, self.current_epoch)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        images, labels = batch
        outputs = self.model(images)
        with torch.no_grad():
            targets = self.teacher(images)
        return (functional.cross_entropy(outputs, labels) + qat.distillation(outputs, targets, 2.0)) / 2

    def configure_optimizers(self) -> torch.optim.Optimizer:
        scales = self.model.scale_parameters()
        known = {id(parameter) for parameter in scales}
        weights = [parameter for parameter in self.model.parameters() if id(parameter) not in known]
        groups = [{"params": weights}, {"params": scales, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1e-3, weight_decay=1e-4)


@torch.no_grad()
def accuracy(network: nn.Module) -> float:
    """Share of right answers on the test split in percent."""
    images, labels = dataset("test").tensors
    return 100 * float((network.eval()(images).argmax(1) == labels).float().mean())


def train(epochs: int, out: Path) -> None:
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    lightning.seed_everything(0, verbose=False)
    module = Training()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(process_group_backend="gloo") if ranks > 1 else "auto",
        max_epochs=epochs,
        precision="bf16-mixed",
        accumulate_grad_batches=2,
        callbacks=[
            Calibration(),
            EMAWeightAveraging(decay=0.9),
            ModelCheckpoint(out / "checkpoints", save_last=True),
        ],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = out / "checkpoints" / "last.ckpt"
    trainer.fit(
        module,
        DataLoader(dataset("train"), batch_size=32 // ranks, shuffle=True),
        ckpt_path=str(last) if last.is_file() else None,
    )
    if trainer.is_global_zero:
        print(f"trained {accuracy(module.model):.2f} after {trainer.current_epoch} epochs")
        qat.export(module.model, out / "model.qdq.onnx")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/lightning"))
    options = parser.parse_args()
    train(options.epochs, options.out)
