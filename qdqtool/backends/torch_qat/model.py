"""A network with fake quantizers, as a module that any training loop takes."""

from __future__ import annotations

import copy
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
from qdqtool.errors import UsageError
from qdqtool.graph.view import GraphView


class QatModel(nn.Module):
    """A network with fake quantizers where a placement wants them; weights are those of the float network.

    It takes and returns what the network does. Its state holds weights, scales and the calibration, so that a
    checkpoint goes on in another process. `forward` refuses until there are ranges: rounding with none would destroy
    the network, and leaving the rounding out would train a float one unseen.

    Attributes:
        placement: where Q/DQ go, and why.
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
                f"the engine {options.engine} learns no scales",
                fix="--set qat.scales=fixed, or --set qat.engine=own",
                where="qat.scales",
            )
        self.placement, self.options = placement, options
        self.sites: Sites = locate(placement, view, flat)
        self.student = make_student(flat, self.sites.found, placement, None, engine, learn=learn)
        self.network = self.student.network
        # In a tuple, so that the float network's weights are not registered a second time.
        self._flat = (flat,)
        self.table: CalibrationTable | None = None

    @property
    def flat(self) -> fx.GraphModule:
        """The float network, traced, with the same weights."""
        return self._flat[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.table is None:
            raise UsageError(
                "the quantizers have no ranges yet", fix="call qdqtool.qat.calibrate(model, loader) first"
            )
        return self.network(*args, **kwargs)

    def set_calibration(self, table: CalibrationTable, view: GraphView) -> None:
        """Start from these ranges and bias corrections; `view` is the prepared graph that they belong to."""
        shift_biases(self.flat, table.shifts, bias_owners(table.shifts, view, self.flat))
        set_ranges(self.student, self.sites.found, table, self.flat)
        self.table = table

    def trained(self) -> CalibrationTable:
        """The ranges as they are now; tensors without a quantizer keep what calibration gave them.

        Raises:
            UsageError: there was no calibration.
        """
        if self.table is None:
            raise UsageError(
                "the model was never calibrated", fix="call qdqtool.qat.calibrate(model, loader) first"
            )
        return self.student.table(self.table)

    def write_float(self, path: Path, example: tuple[torch.Tensor, ...]) -> None:
        """Write the network without quantizers as ONNX; the training mode stays."""
        was_training = self.training
        try:
            export(self.flat.eval(), example, path, exporter=self.options.exporter, opset=self.options.opset)
        finally:
            self.train(was_training)

    def freeze_norms(self) -> None:
        """Use BatchNorm's running statistics from now on and keep them, until `train()` is called again."""
        freeze_norms(self.network)

    def scale_parameters(self) -> list[nn.Parameter]:
        """The scales that are learned: for an optimizer group without weight decay."""
        return [
            p for module in self.student.quantizers.values() for p in module.parameters() if p.requires_grad
        ]

    def get_extra_state(self) -> dict[str, str]:
        return {"calibration": "" if self.table is None else CALIBRATION.dump(self.table)}

    def set_extra_state(self, state: Any) -> None:
        text = state["calibration"]
        if not text:
            self.table = None
            return
        with TemporaryDirectory(prefix="qdqtool-qat-") as folder:
            path = Path(folder) / "calibration.json"
            path.write_text(text, "utf-8")
            self.table = CALIBRATION.read(path)

    def __deepcopy__(self, memo: dict[int, Any]) -> QatModel:
        """A copy for averaged weights; the placement and the sites are shared, for they never change."""
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        for shared in (self.placement, self.sites, self.table, self.options, self.student.engine):
            memo[id(shared)] = shared
        made.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return made


class PreparedModel(QatModel):
    """A `QatModel` with what its own calibration and export need.

    Attributes:
        recipe: how it is calibrated and written.
        example: one sample of every input.
        inputs: names of the inputs, those of forward().
    """

    recipe: Recipe
    example: tuple[torch.Tensor, ...]
    inputs: tuple[str, ...]
