"""The bench that all trials of a sweep share: prepared model, histograms, ranking, finished builds."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qdqtool.core.artefacts import canonical, read_json
from qdqtool.core.files import digest_file, write_text
from qdqtool.core.kinds import CALIBRATION, ENGINE, PLACEMENT
from qdqtool.core.report import Report
from qdqtool.core.sweep import Outcome, Value
from qdqtool.engine.devices import find_device
from qdqtool.engine.estimate import estimate
from qdqtool.engine.view import view
from qdqtool.errors import BuildError
from qdqtool.workflows import line, recipes
from qdqtool.workflows.order import Order
from qdqtool.workflows.sweep.ranking import rank
from qdqtool.workflows.sweep.space import Space

OUTCOME, METRIC = "outcome", "metric"
_KEPT = frozenset({"report.json", "recipe.yaml"})
"""What stays of a trial that others beat; the rest can be made again from its recipe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepOrder:
    """One sweep, please.

    Attributes:
        order: model, samples, folder; its recipe is the base with `settings` applied.
        recipe: the base recipe as typed, or None.
        settings: changes of the base recipe as typed.
        trials: how many trials; None tries the whole grid, or 50 with a sampler that draws.
        storage: address of the study; "" is a file in the folder.
        study: the study's name; "" is made from the inputs.
    """

    order: Order
    recipe: str | None = None
    settings: tuple[str, ...] = ()
    trials: int | None = None
    storage: str = ""
    study: str = ""


class Bench:
    """Makes what is shared once, and runs one configuration at a time."""

    def __init__(self, wish: SweepOrder) -> None:
        self.wish = wish
        self.order = wish.order
        self.options = wish.order.recipe.sweep
        self.device = find_device(self.options.device)
        self._base = line.start(replace(self.order, out=self.order.out / "base"), "calibrate")

    @property
    def identity(self) -> dict[str, str]:
        """Digests of everything that decides what a trial gives."""
        return {
            "model": digest_file(self.order.model),
            "samples": self._base.samples.digest,
            "evaluation": self._base.evaluation.digest,
            "recipe": _digest(self.order.recipe.model_dump(mode="json")),
        }

    def ranking(self, on_progress: Callable[[int, int | None], None]) -> tuple[str, ...]:
        """The quantized nodes, most sensitive first; kept beside the histograms."""
        if max(self.options.keep_float, default=0) == 0:
            return ()
        path, work = self._base.path("ranking.json"), self._base
        key = digest_file(work.path("calibration.json"))
        if path.is_file():
            known = read_json(path)
            if isinstance(known, dict) and known.get("key") == key:
                return tuple(str(node) for node in known["nodes"])
        found = rank(
            work.model("model.prepared.onnx"),
            PLACEMENT.read(work.path("placement.json")),
            CALIBRATION.read(work.path("calibration.json")),
            work.samples,
            on_progress,
        )
        write_text(path, canonical({"key": key, "nodes": found}))
        return found

    def objective(
        self, space: Space, choice: dict[str, Value], note: Callable[[str, Any], None]
    ) -> tuple[float, float]:
        """Run the line with this choice; the accuracy measured and the milliseconds estimated.

        Raises:
            BuildError: the builder refuses this configuration, or its accuracy is undefined.
        """
        settings = space.settings(choice)
        folder = self.order.out / "trials" / _digest(settings)[:12]
        report = self.run(settings, folder)
        accuracy = report.summary.accuracy
        if accuracy is None or accuracy.int8 is None:
            raise BuildError("its accuracy is undefined", fix="look at the outputs with `qdqtool compare`")
        outcome = Outcome(
            settings=settings,
            accuracy=accuracy.int8,
            ms=estimate(view(ENGINE.read(folder / "layers.json")), self.device).ms,
            nodes_int8=report.summary.nodes_int8 or 0,
            nodes_total=report.summary.nodes_total or 0,
            kernels=report.summary.kernels or 0,
            kept_float=space.kept(choice),
        )
        note(OUTCOME, asdict(outcome))
        note(METRIC, [accuracy.metric, accuracy.unit, accuracy.reference])
        _thin_out(folder)
        return outcome.accuracy, outcome.ms

    def run(self, settings: tuple[str, ...], out: Path) -> Report:
        """The whole line in `out` with these settings; histograms and finished builds are shared."""
        order = replace(
            self.order,
            recipe=recipes.load(self.wish.recipe, [*self.wish.settings, *settings]),
            out=out,
            cache=self.order.cache or self.order.out / "builds",
            histograms=self._base.path("histograms.npz"),
        )
        return line.run(order)


def _thin_out(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in _KEPT:
            path.unlink() if path.is_file() else shutil.rmtree(path)


def _digest(value: object) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()
