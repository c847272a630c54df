"""Quantization-aware training with the Trainer of Hugging Face transformers, on one process or several.

    python recipes/examples/qat_trainer/train.py --out runs/trainer
    torchrun --nproc-per-node 2 recipes/examples/qat_trainer/train.py --out runs/trainer

Needs `pip install 'qdqtool[qat]' transformers accelerate`. The network and its data are those of `../qat_digits`; one of
transformers' own networks is prepared in the same way. It trains in bfloat16 autocast, accumulates two batches per
step, averages weights (EMA), takes half of the loss from the float network, and writes a checkpoint after every
epoch: started again with more epochs, it goes on from the last one.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from qdqtool import qat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "qat_digits"))
from network import data
from network import model as trained_float_network

RECIPE = {"place.per_channel": False, "calibrate.method": "percentile", "calibrate.percentile": 99.99}


class Digits(Dataset[dict[str, Any]]):
    """Samples by the names of forward(), as the Trainer passes them."""

    def __init__(self, split: str) -> None:
        self.images, self.labels = (torch.from_numpy(array) for array in data(split))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"image": self.images[row], "labels": int(self.labels[row])}


class DistillingTrainer(Trainer):
    """Half of the loss is the distance to the float network's outputs."""

    teacher: nn.Module

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **_: Any
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        with torch.no_grad():
            targets = self.teacher(**inputs)
        loss = (functional.cross_entropy(outputs, labels) + qat.distillation(outputs, targets, 2.0)) / 2
        return (loss, outputs) if return_outputs else loss


class Quantized(TrainerCallback):
    """Freezes what the schedule says, and averages weights; the average goes into every checkpoint."""

    def __init__(self, model: nn.Module, checkpoint: str | None) -> None:
        self.schedule = qat.FreezeSchedule(norms=0, scales=5)
        self.averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        if checkpoint:
            self.averaged.load_state_dict(torch.load(Path(checkpoint) / "average.pt", weights_only=True))

    def on_epoch_begin(self, _: Any, state: Any, __: Any, **more: Any) -> None:
        self.schedule.apply(more["model"], state.epoch or 0)

    def on_step_end(self, _: Any, __: Any, ___: Any, **more: Any) -> None:
        self.averaged.update_parameters(more["model"])

    def on_save(self, arguments: Any, state: Any, _: Any, **__: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(arguments.output_dir) / f"checkpoint-{state.global_step}"
            torch.save(self.averaged.state_dict(), folder / "average.pt")


@torch.no_grad()
def accuracy(network: nn.Module) -> float:
    """Share of right answers on the test split in percent."""
    test = Digits("test")
    return 100 * float((network.eval()(test.images).argmax(1) == test.labels).float().mean())


def train(epochs: int, out: Path) -> None:
    torch.set_num_threads(1)
    # Makes the process group where torchrun started several, so it comes before `calibrate`.
    arguments = TrainingArguments(
        str(out / "checkpoints"),
        num_train_epochs=epochs,
        per_device_train_batch_size=32 // int(os.environ.get("WORLD_SIZE", "1")),
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        bf16=True,
        use_cpu=True,
        save_strategy="epoch",
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],
        ddp_find_unused_parameters=False,
        seed=0,
    )
    samples = Digits("train")
    network = trained_float_network()
    teacher = copy.deepcopy(network)
    model = qat.prepare(network, {"image": samples.images[:1]}, "conv-int8", settings=RECIPE)
    # Every rank its own part; all begin with the ranges of the whole.
    part = samples.images[arguments.process_index : 320 : arguments.world_size]
    qat.calibrate(model, [{"image": part}])
    before = accuracy(model)

    checkpoint = get_last_checkpoint(str(out / "checkpoints")) if (out / "checkpoints").is_dir() else None
    callback = Quantized(model, checkpoint)
    trainer = DistillingTrainer(model=model, args=arguments, train_dataset=samples, callbacks=[callback])
    trainer.teacher = teacher
    trainer.train(resume_from_checkpoint=checkpoint)

    if trainer.is_world_process_zero():
        if checkpoint:
            print(f"went on from {Path(checkpoint).name}")
        print(f"calibrated {before:.2f}  trained {accuracy(callback.averaged):.2f}")
        qat.export(callback.averaged, out / "model.qdq.onnx")
    # Released with an exchange still in its threads, a process group can wait for itself for ever; a barrier ends them all.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("runs/trainer"))
    options = parser.parse_args()
    train(options.epochs, options.out)
