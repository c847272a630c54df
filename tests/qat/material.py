"""A network of `networks.py` with its placement and ranges, made by the same steps as `qdqtool qat run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qdqtool.backends.torch_qat.model import QatModel
from qdqtool.backends.torch_qat.network import Network, Trained
from qdqtool.calibration.collect import collect
from qdqtool.calibration.samples import open_samples
from qdqtool.calibration.table import make_table
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import Recipe
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import save
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from qdqtool.pipeline import recipes
from qdqtool.placement.decide import decide

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class NodeEvidence:
    """A network, exported, placed and calibrated."""

    network: Network
    model: Model
    placement: Placement
    table: CalibrationTable
    recipe: Recipe

    def fit(self, folder: Path, key: str = "key") -> tuple[QatModel, Trained]:
        """The network with quantizers, trained from the table's ranges on, and how that went."""
        model = QatModel(self.network.flat, self.placement, self.model.view, self.recipe.qat)
        model.set_calibration(self.table, self.model.view)
        return model, self.network.fit(model, folder, key, lambda *_: None)


def recipe_of(model: str, *changes: str, data: str = "") -> Recipe:
    chosen = data or ("tokens" if model in {"attention", "causal", "transformer", "wide"} else "images")
    named = [f"qat.model=networks.py:{model}", f"qat.data=networks.py:{chosen}"]
    few = ["qat.epochs=2", "qat.batch=16", "qat.threads=1", "calibrate.method=max"]
    return recipes.load("conv-int8", [*named, *few, *changes])


def network_of(model: str, *changes: str, data: str = "") -> Network:
    return Network(recipe_of(model, *changes, data=data).qat, HERE)


def make(folder: Path, model: str, *changes: str) -> NodeEvidence:
    recipe = recipe_of(model, *changes)
    network = Network(recipe.qat, HERE)
    network.export(folder / "float.onnx")
    ready = prepare(load(folder / "float.onnx"), recipe.prepare)
    placement = decide(ready.view, recipe.place)
    columns, _ = network.train.gathered()
    np.savez(folder / "samples.npz", **dict(zip(network.inputs, columns, strict=True)))
    source = open_samples(str(folder / "samples.npz"), ready.view.inputs)
    table = make_table(collect(ready, placement, source), placement, ready.view, recipe.calibrate)
    return NodeEvidence(network=network, model=ready, placement=placement, table=table, recipe=recipe)


def written(node_evidence: NodeEvidence, table: CalibrationTable, folder: Path) -> Path:
    """The network as it is now, as a Q/DQ model with these ranges."""
    node_evidence.network.export(folder / "trained.onnx")
    ready = prepare(load(folder / "trained.onnx"), node_evidence.recipe.prepare)
    save(
        insert(ready, decide(ready.view, node_evidence.recipe.place), table, node_evidence.recipe.insert),
        folder / "qdq.onnx",
    )
    return folder / "qdq.onnx"
