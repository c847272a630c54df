"""Training with quantizers inside your own loop (needs torch: pip install 'qdqtool[qat]').

    from qdqtool import qat

    model = qat.prepare(network, example_inputs, "conv-int8")
    qat.calibrate(model, loader)
    for inputs, targets in loader:          # your loop, unchanged
        loss = criterion(model(inputs), targets)
        ...
    qat.export(model, "model.qdq.onnx")

`prepare` inserts fake quantizers at the inputs where placement puts Q/DQ, so training and TensorRT compute with equal
roundings. The model is a `torch.nn.Module` with the inputs and outputs of the network. DistributedDataParallel, mixed
precision, averaged weights and checkpoints work as with any other module. Make the optimizer, and wrap the model,
after `calibrate`, because a corrected bias may be a new parameter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtool.api.inputs import AnyPath, RecipeInput, SettingsInput, recipe_of
from qdqtool.api.progress import public
from qdqtool.backends.torch_qat import need_torch
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.kinds import PLACEMENT
from qdqtool.core.placement import Placement
from qdqtool.core.qat import UntrainedSlot
from qdqtool.errors import UsageError
from qdqtool.io.files import path_of

if TYPE_CHECKING:
    from qdqtool.backends.torch_qat.model import PreparedModel

__all__ = ["FreezeSchedule", "calibrate", "distillation", "export", "prepare", "untrained", "wrapped"]


@public
def prepare(
    network: Any,
    example_inputs: Any,
    recipe: RecipeInput = "conv-int8",
    *,
    settings: SettingsInput = (),
    trust: bool = False,
    placement: Placement | AnyPath | None = None,
) -> PreparedModel:
    """Return a module with the weights of `network` and fake quantizers at the inputs that placement chose.

    A network whose path depends on shapes is recorded with the example inputs. In a part whose path depends on data,
    only the layers get quantizers. `wrapped` lists these layers, and `untrained` the remaining slots.

    Args:
        network: the trained float `torch.nn.Module`; it is put into evaluation mode, and training moves its weights.
        example_inputs: a tensor with a batch dimension, a tuple of tensors in the order of forward(), or a dict by
            the names of forward(); omitted inputs keep their default values.
        recipe: a shipped recipe's name, a .yaml file, a dict or a `Recipe`: placement, calibration, insertion, and
            from its section `qat` the engine, whether scales are learned, BatchNorm, exporter and opset.
        settings: changes of the recipe, as {"place.first_layer": "float"}.
        trust: whether a recipe file may name Python functions, which are imported and run.
        placement: result of `qdqtool.place` for the export of this network, or a placement.json; None computes a
            placement.

    Raises:
        MissingPackage: torch is not installed.
        UsageError: the network cannot be traced or exported, or the placement quantizes nothing.
    """
    need_torch()
    from torch import nn

    from qdqtool.pipeline.qat import library

    if not isinstance(network, nn.Module):
        raise UsageError(
            f"a network cannot be read from {type(network).__name__}",
            fix="pass a torch.nn.Module",
            where="network",
        )
    if placement is not None and not isinstance(placement, Placement):
        placement = PLACEMENT.read(path_of(placement, "placement"))
    return library.prepare(network, example_inputs, recipe_of(recipe, settings, trust=trust), placement)


@public
def calibrate(model: Any, loader: Iterable[Any], *, limit: int = 512) -> CalibrationTable:
    """Choose all ranges from samples and set the quantizers of the model to them. The model is changed in place.

    With an initialized process group, every rank must call it with its own part of the samples. The samples are
    gathered, and all ranks get the ranges that one process would compute.

    Args:
        model: result of `prepare`, plain or wrapped.
        loader: gives batches: a tensor, (inputs, targets), or a dict by the names of forward()'s inputs.
        limit: most samples to use, per rank.

    Raises:
        InputFileError: there are no samples, or they do not fit.
    """
    from qdqtool.pipeline.qat import library

    return library.calibrate(_unwrap(model), loader, limit)


@public
def export(model: Any, path: AnyPath, loader: Iterable[Any] = (), *, limit: int = 512) -> Path:
    """Write the trained network as a Q/DQ model with the trained ranges, and return the path.

    Args:
        model: result of `prepare`, plain or wrapped (DistributedDataParallel, AveragedModel).
        path: ONNX file to write. With several ranks, let a single rank write.
        loader: samples as for `calibrate`, on which the slots that `untrained` names get ranges of the trained
            network; without any they keep those of before the training. With `insert.types=fp16` they also show
            values that do not fit into FP16.
        limit: most samples to use.

    Raises:
        UsageError: the model was never calibrated, or the exporter refuses it.
        InputFileError: the samples do not fit.
    """
    from qdqtool.pipeline.qat import library

    return library.export(_unwrap(model), path_of(path, "path"), loader, limit)


def distillation(outputs: Any, targets: Any, temperature: float = 4.0) -> Any:
    """Return the distillation loss: the mean distance of the outputs from those of the float network, as a tensor.

    Class scores [N, C] are compared by Kullback-Leibler divergence at `temperature` (Hinton et al., 2015), all other
    float tensors by mean squared error.

    Args:
        outputs: outputs of the model in training: tensors in tuples, lists, dicts, dataclasses.
        targets: outputs of the float network for equal inputs, made without gradients.
        temperature: divides class scores; higher ones count small scores more.

    Raises:
        UsageError: the two hold different tensors.
    """
    need_torch()
    from qdqtool.backends.torch_qat.losses import measure_distillation

    return measure_distillation(outputs, targets, temperature)


@dataclass(frozen=True, kw_only=True)
class FreezeSchedule:
    """Epochs after which the BatchNorm statistics and the learned scales are frozen, counted from the start of training.

        schedule = qat.FreezeSchedule(norms=1, scales=8)
        for epoch in range(10):
            schedule.apply(model, epoch)

    Statistics that move change the weight that the engine will see, because BatchNorm is folded into it; scales that
    still move when the learning rate is small cost accuracy and bring none.

    Attributes:
        norms: from this epoch on BatchNorm uses its running statistics and keeps them; None never freezes them.
        scales: from this epoch on, scales do not change; None never freezes them.
    """

    norms: float | None = 0
    scales: float | None = None

    def apply(self, model: Any, epoch: float) -> None:
        """Freeze the parts of a prepared model that are frozen at this epoch. The epoch may be a fraction, the model may be wrapped.

        It may be called before every epoch or step, and by a training that is resumed.
        """
        inner = _unwrap(model)
        inner.freeze_norms(self.norms is not None and epoch >= self.norms)
        frozen = self.scales is not None and epoch >= self.scales
        if frozen != inner.scales_frozen:
            inner.freeze_scales(frozen)


def untrained(model: Any) -> tuple[UntrainedSlot, ...]:
    """Return the node inputs that keep their calibrated ranges because training has no quantizer there, with reasons."""
    lost = _unwrap(model).sites.lost
    return tuple(UntrainedSlot(slot=str(slot), reason=reason) for slot, reason in lost)


def wrapped(model: Any) -> tuple[str, ...]:
    """Return the layers that quantize inside a wrapper, because neither torch.fx nor torch.export can follow the code around them.

    Other computation in such a part (sums, attention) stays float in training; `untrained` names it.
    """
    return tuple(sorted({site.owner for site in _unwrap(model).sites.placed if site.layer}))


def _unwrap(model: Any) -> PreparedModel:
    """Return the model that `prepare` made, out of wrappers that hold it as `module`."""
    need_torch()
    from qdqtool.backends.torch_qat.model import PreparedModel

    inner = model
    while inner is not None and not isinstance(inner, PreparedModel):
        inner = getattr(inner, "module", None)
    if inner is None:
        raise UsageError(
            f"the model, a {type(model).__name__}, was not prepared by qat.prepare",
            fix="pass the model that qat.prepare returned",
            where="model",
        )
    return inner
