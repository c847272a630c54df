"""A network with fake quantizers, as a module for any training loop."""

from __future__ import annotations

import copy
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import fx, nn

from qdqtool.backends.torch_qat.export import export
from qdqtool.backends.torch_qat.fake_quant import ENGINES
from qdqtool.backends.torch_qat.fake_quant_backend import FakeQuantBackend
from qdqtool.backends.torch_qat.quantized_model import freeze_norms, make_student, set_ranges, shift_biases
from qdqtool.backends.torch_qat.sites import Sites, bias_owners, locate
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import QatOptions, Recipe
from qdqtool.core.wording import Setting
from qdqtool.errors import UsageError
from qdqtool.graph.view import GraphView


class QatModel(nn.Module):
    """A network with fake quantizers at chosen inputs that have a place in it; shares the float weights.

    It has the inputs and outputs of the network. Its state holds weights, scales and the calibration, so that a
    checkpoint continues in another process. `forward` raises an error until there are ranges, because training
    without quantizers would go unnoticed.

    Attributes:
        placement: slots with Q/DQ, and the reasons.
        sites: which of its slots have a quantizer, and which have none, with the reason.
        table: ranges that calibration gave; None before.
        options: of the recipe.
    """

    def __init__(
        self, flat: fx.GraphModule, placement: Placement, view: GraphView, options: QatOptions
    ) -> None:
        super().__init__()
        engine: FakeQuantBackend = ENGINES.load(options.engine)
        learn = options.scales == "learned"
        if learn and engine.learns == "none":
            raise UsageError(
                f"qat.engine is {options.engine!r}, which cannot learn scales",
                fix=f"{Setting('qat.scales', 'fixed')}, or {Setting('qat.engine', 'own')}",
                where="qat.scales",
            )
        self.placement, self.options = placement, options
        self.sites: Sites = locate(placement, view, flat)
        self.student = make_student(flat, self.sites.placed, placement, None, engine, learn=learn)
        self.network = self.student.network
        # In a tuple, so that torch does not register the float network's weights twice.
        self._flat = (flat,)
        self.table: CalibrationTable | None = None
        self._norms_frozen = False
        self._held: tuple[tuple[nn.Parameter, torch.Tensor], ...] = ()
        self.register_load_state_dict_pre_hook(_add_biases)
        self.register_load_state_dict_post_hook(_hold_loaded)

    @property
    def flat(self) -> fx.GraphModule:
        """The traced float network, which shares the weights."""
        return self._flat[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.table is None:
            raise UsageError(
                "the quantizers have no ranges yet", fix="call qdqtool.qat.calibrate(model, loader) first"
            )
        self._hold_scales()
        return self.network(*args, **kwargs)

    def set_calibration(self, table: CalibrationTable, view: GraphView) -> None:
        """Set ranges and biases from a calibration table; `view` is the graph that was calibrated."""
        shift_biases(self.flat, table.shifts, bias_owners(table.shifts, view, self.flat))
        set_ranges(self.student, self.sites.placed, table, self.flat)
        self.table = table

    def trained(self) -> CalibrationTable:
        """Return the calibration table with the trained ranges.

        A tensor without a quantizer keeps its calibrated range.

        Raises:
            UsageError: there was no calibration.
        """
        if self.table is None:
            raise UsageError(
                "the model was never calibrated", fix="call qdqtool.qat.calibrate(model, loader) first"
            )
        self._hold_scales()
        return self.student.table(self.table)

    def write_float(self, path: Path, example: tuple[torch.Tensor, ...]) -> None:
        """Write the network without quantizers as ONNX; the training mode is restored."""
        was_training = self.training
        try:
            export(self.flat.eval(), example, path, exporter=self.options.exporter, opset=self.options.opset)
        finally:
            self.train(was_training)

    def freeze_norms(self, frozen: bool = True) -> None:
        """Use BatchNorm's running statistics without updates, also in training; `frozen=False` undoes this.

        Trainers call `train()` before every epoch or step, which therefore does not undo it.
        """
        self._norms_frozen = frozen
        self.train(self.training)

    def freeze_scales(self, frozen: bool = True) -> None:
        """Keep the learned scales at their current values; `frozen=False` lets them change again.

        Gradients are still computed, because a wrapper that waits for all gradients (DistributedDataParallel) does
        not know about frozen scales. Before the next step, the scales get their old values, regardless of the
        momentum of an optimizer.
        """
        self._held = tuple((p, p.detach().clone()) for p in self.scale_parameters()) if frozen else ()

    @property
    def scales_frozen(self) -> bool:
        """Whether `freeze_scales` is in effect."""
        return bool(self._held)

    def _hold_scales(self) -> None:
        with torch.no_grad():
            for parameter, value in self._held:
                if not torch.equal(parameter, value.to(parameter)):
                    parameter.copy_(value)

    def train(self, mode: bool = True) -> QatModel:
        super().train(mode)
        if mode and self._norms_frozen:
            freeze_norms(self.network)
        return self

    def scale_parameters(self) -> list[nn.Parameter]:
        """Return the learned scales, for an optimizer group without weight decay."""
        return [
            p for module in self.student.quantizers.values() for p in module.parameters() if p.requires_grad
        ]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        self._hold_scales()
        return super().state_dict(*args, **kwargs)

    def get_extra_state(self) -> torch.Tensor:
        """Return the calibration as UTF-8 in a tensor, because formats such as safetensors store only tensors."""
        text = "" if self.table is None else CALIBRATION.dump(self.table)
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        text = bytes(state.tolist()).decode()
        if not text:
            self.table = None
            return
        with TemporaryDirectory(prefix="qdqtool-qat-") as folder:
            path = Path(folder) / "calibration.json"
            path.write_text(text, "utf-8")
            self.table = CALIBRATION.read(path)

    def __deepcopy__(self, memo: dict[int, Any]) -> QatModel:
        """Copy the model, for averaged weights; placement, sites and other objects that never change are shared."""
        duplicate = self.__class__.__new__(self.__class__)
        memo[id(self)] = duplicate
        for shared in (self.placement, self.sites, self.table, self.options, self.student.engine):
            memo[id(shared)] = shared
        duplicate.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return duplicate


class PreparedModel(QatModel):
    """A `QatModel` with the data that its calibration and export need.

    Attributes:
        recipe: how it is calibrated and written.
        example: one sample of every input.
        inputs: names of the inputs, those of forward().
    """

    recipe: Recipe
    example: tuple[torch.Tensor, ...]
    inputs: tuple[str, ...]


def _add_biases(model: QatModel, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Before a checkpoint is loaded, add zero biases to layers that have a bias only in the checkpoint.

    The checkpoint has them because calibration corrected the outputs of these layers.
    """
    for key, value in state.items():
        owner, _dot, name = key.removeprefix(prefix).rpartition(".")
        if key.startswith(prefix) and name == "bias":
            try:
                module: Any = model.get_submodule(owner)
            except AttributeError:
                continue
            if getattr(module, "bias", value) is None:
                # A BatchNorm without weights has only buffers.
                place = next(chain(module.parameters(), module.buffers(), model.parameters()))
                module.bias = nn.Parameter(torch.zeros_like(value, device=place.device))


def _hold_loaded(model: QatModel, *_: Any) -> None:
    """Freeze the scales after loading a checkpoint in which they were frozen."""
    model.freeze_scales(model.scales_frozen)
