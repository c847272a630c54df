"""One engine for every GPU of the fleet: TensorRT for RTX, for SM86 and SM89 whatever else was asked for.

    qdqtool build model.qdq.onnx --builder fleet --out built

A backend can be anything that leaves an engine, its log and its layer information in `request.folder`: another machine,
a container, a farm of boards.
"""

from dataclasses import replace

from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.core.protocols import BuildCost, BuildRequest, BuildResult, OnProgress

FLEET = ("sm86", "sm89")


class FleetBuilder:
    """Hands the work on, and says what it changed."""

    def version(self) -> str:
        """The release of TensorRT for RTX."""
        return RTX.version()

    def build(
        self, request: BuildRequest, on_progress: OnProgress | None = None
    ) -> tuple[BuildResult, BuildCost]:
        """As TensorRT for RTX builds it; errors are its own."""
        result, cost = RTX.build(replace(request, targets=FLEET), on_progress)
        return replace(result, notes=(*result.notes, f"built for the fleet: {', '.join(FLEET)}")), cost


PLUGIN = FleetBuilder()
