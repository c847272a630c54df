"""Quantization-aware training in a plain PyTorch loop, on one process or several.

    python recipes/examples/qat_own_loop/train.py --out model.qdq.onnx
    torchrun --nproc-per-node 2 recipes/examples/qat_own_loop/train.py --out model.qdq.onnx

Needs `pip install 'qdqtool[qat]'`. The network and its data are those of `../qat_digits`; four lines are qdqtool's, the
rest is what any training has. With several processes every rank calibrates on its own part of the samples, and all
begin with the ranges of the whole.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from qdqtool import qat

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "qat_digits"))
from network import data
from network import model as trained_float_network

RECIPE = {"place.per_channel": False, "calibrate.method": "percentile", "calibrate.percentile": 99.99}


def dataset(split: str) -> TensorDataset:
    images, labels = data(split)
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))


@torch.no_grad()
def accuracy(network: nn.Module, split: str) -> float:
    """Share of right answers in percent."""
    images, labels = dataset(split).tensors
    return 100 * float((network.eval()(images).argmax(1) == labels).float().mean())


def train(epochs: int, out: Path) -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        distributed.init_process_group("gloo")
    rank = distributed.get_rank() if ranks > 1 else 0
    torch.set_num_threads(1)
    torch.manual_seed(0)
    samples = dataset("train")
    sampler = DistributedSampler(samples, ranks, rank, seed=0)
    loader = DataLoader(samples, batch_size=64 // ranks, sampler=sampler)

    network = trained_float_network()
    model = qat.prepare(network, samples[:1][0], "conv-int8", settings=RECIPE)
    qat.calibrate(model, loader, limit=300 // ranks)
    before = accuracy(model, "test")

    parallel = DistributedDataParallel(model) if ranks > 1 else model
    scales = model.scale_parameters()
    known = {id(parameter) for parameter in scales}
    weights = [parameter for parameter in model.parameters() if id(parameter) not in known]
    optimizer = torch.optim.AdamW(
        [{"params": weights}, {"params": scales, "weight_decay": 0.0}], lr=2e-3, weight_decay=1e-4
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        parallel.train()
        model.freeze_norms()
        for images, labels in loader:
            loss = functional.cross_entropy(parallel(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()

    after = accuracy(model, "test")
    if rank == 0:
        print(f"calibrated {before:.2f}  trained {after:.2f}")
        qat.export(parallel, out)
    if ranks > 1:
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("model.qdq.onnx"))
    options = parser.parse_args()
    train(options.epochs, options.out)
