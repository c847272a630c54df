"""Quantization-aware training with Hugging Face Accelerate, on one process or several.

    python recipes/examples/qat_accelerate/train.py --out runs/accelerate
    torchrun --nproc-per-node 2 recipes/examples/qat_accelerate/train.py --out runs/accelerate

Needs `pip install 'qdqtool[qat]' accelerate`. The network and its data are those of `../qat_digits`. It trains in
bfloat16 autocast, accumulates two batches per step, averages weights (EMA), takes half of the loss from the float
network, and writes its state after every epoch: started again with more epochs, it goes on where it ended.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from qdqtool import qat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "qat_digits"))
from network import data
from network import model as trained_float_network

RECIPE = {"place.per_channel": False, "calibrate.method": "percentile", "calibrate.percentile": 99.99}


class Progress:
    """How many epochs are done, as a part of the training state."""

    epochs = 0

    def state_dict(self) -> dict[str, int]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epochs = state["epochs"]


@torch.no_grad()
def accuracy(network: nn.Module) -> float:
    """Share of right answers on the test split in percent."""
    images, labels = (torch.from_numpy(array) for array in data("test"))
    return 100 * float((network.eval()(images).argmax(1) == labels).float().mean())


def train(epochs: int, out: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    samples = TensorDataset(*map(torch.from_numpy, data("train")))
    loader = DataLoader(samples, batch_size=32 // accelerator.num_processes, shuffle=True)

    network = trained_float_network()
    teacher = copy.deepcopy(network)
    model = qat.prepare(network, samples[:1][0], "conv-int8", settings=RECIPE)
    # Every rank its own part; all begin with the ranges of the whole.
    part = slice(accelerator.process_index, 320, accelerator.num_processes)
    qat.calibrate(model, DataLoader(TensorDataset(*samples[part]), batch_size=64))
    before = accuracy(model)

    scales = model.scale_parameters()
    known = {id(parameter) for parameter in scales}
    weights = [parameter for parameter in model.parameters() if id(parameter) not in known]
    optimizer = torch.optim.AdamW(
        [{"params": weights}, {"params": scales, "weight_decay": 0.0}], lr=1e-3, weight_decay=1e-4
    )
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    progress = Progress()
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(averaged, progress)
    if (out / "state").is_dir():
        accelerator.load_state(str(out / "state"))
        accelerator.print(f"goes on after epoch {progress.epochs}")

    schedule = qat.FreezeSchedule(norms=0, scales=5)
    for epoch in range(progress.epochs, epochs):
        loader.set_epoch(epoch)
        wrapped.train()
        schedule.apply(wrapped, epoch)
        for images, labels in loader:
            with accelerator.accumulate(wrapped):
                outputs = wrapped(images)
                with torch.no_grad():
                    targets = teacher(images)
                loss = functional.cross_entropy(outputs, labels) + qat.distillation(outputs, targets, 2.0)
                accelerator.backward(loss / 2)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                averaged.update_parameters(accelerator.unwrap_model(wrapped))
        progress.epochs = epoch + 1
        accelerator.save_state(str(out / "state"))

    after = accuracy(averaged)
    accelerator.print(f"calibrated {before:.2f}  trained {after:.2f}")
    if accelerator.is_main_process:
        qat.export(averaged, out / "model.qdq.onnx")
    # Released with an exchange still in its threads, a process group can wait for itself for ever; a barrier ends them all.
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/accelerate"))
    options = parser.parse_args()
    train(options.epochs, options.out)
