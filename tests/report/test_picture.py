"""Charts and graphs as files."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from qdqtool.errors import UsageError
from qdqtool.report.assemble import Material, assemble
from qdqtool.report.figures import write_figures
from qdqtool.report.svg import canvas, write_picture
from tests.report.material import ENGINE, chain_material


def test_nothing_known_writes_nothing(tmp_path: Path) -> None:
    assert write_figures(assemble(Material(model_name="m")), tmp_path, "svg") == ()


def test_every_chart_and_the_graph_are_files_of_their_own(tmp_path: Path) -> None:
    written = write_figures(assemble(chain_material(20)), tmp_path, "svg")
    assert {"engine-graph.svg", "precision-shares.svg", "time-by-layer.svg"} <= {
        path.name for path in written
    }
    for path in written:
        assert ET.parse(path).getroot().tag.endswith("svg")


def test_png_is_a_picture_with_colours(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="needs the extra png")
    from PIL import Image

    paths = write_figures(assemble(Material(model_name="m", engine=ENGINE)), tmp_path, "png")
    with Image.open(next(path for path in paths if path.stem == "engine-graph")) as image:
        assert len(image.convert("RGB").getcolors(1 << 24)) > 10


def test_other_forms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'\.bmp'"):
        write_figures(assemble(chain_material(5)), tmp_path, "bmp")
    assert list(tmp_path.iterdir()) == []


def test_a_png_too_large_to_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pixels"):
        write_picture(tmp_path / "huge.png", canvas(100_000, 100_000))


@pytest.mark.slow
def test_a_large_png_is_zoomed_out(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="needs the extra png")
    from PIL import Image

    write_picture(tmp_path / "large.png", canvas(8000, 10_000))
    with Image.open(tmp_path / "large.png") as image:
        assert 4000 < image.size[0] < 8000
