"""Where a check speaks of a node that lint speaks of too, both say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.auditing.full_audit import audit
from qdqtool.backends.builders.rtx import PLUGIN as RTX
from qdqtool.core.build import BuildRequest
from qdqtool.engine import read
from qdqtool.graph.onnx_io.load import load
from qdqtool.placement.lint import lint
from tests import models
from tests.placement.qdq import GRAPHS

pytestmark = pytest.mark.rtx


def test_a_weight_that_a_kernel_widens_gets_the_fix_that_lint_gives(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    path = models.save(GRAPHS["int4_channels_int8_activation"](), tmp_path)
    RTX.build(BuildRequest(model=path, folder=tmp_path, targets=("sm86",)))
    model = load(path)
    (asked,) = lint(model).findings
    found = [one for one in audit(model, read(tmp_path / "layers.txt")).findings if one.code == "QDQ205"]
    assert (asked.code, [one.fix for one in found]) == ("QDQ182", [asked.fix])
