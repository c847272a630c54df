"""Outputs that were computed elsewhere: every form of file, and files that are none."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest

from qdqtool.accuracy.compare import compare
from qdqtool.accuracy.stored import Player, open_stored
from qdqtool.core.recipe import CompareOptions
from qdqtool.errors import InputFileError
from tests.accuracy.stand_ins import Scripted, identity, rows

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def played(player: Player) -> list[dict[str, np.ndarray]]:
    return [player.run({}) for _ in range(len(player))]


def encoded(array: np.ndarray) -> dict[str, object]:
    stream = io.BytesIO()
    np.save(stream, array)
    text = base64.b64encode(stream.getvalue()).decode()
    return {"values": {"array": text, "polygraphy_class": "ndarray"}, "polygraphy_class": "LazyArray"}


def polygraphy(path: Path) -> None:
    iterations = [
        {"outputs": {"y": encoded(row[None])}, "runtime": 0.1, "runner_name": "trt", "polygraphy_class": "IterationResult"}
        for row in VALUES
    ]  # fmt: skip
    path.write_text(json.dumps({"lst": [["trt", iterations]], "polygraphy_class": "RunResults"}))


def trtexec(path: Path, row: np.ndarray) -> None:
    path.write_text(json.dumps([{"name": "y", "dimensions": "1x4", "values": row.tolist()}]))


@pytest.fixture
def forms(tmp_path: Path) -> dict[str, Path]:
    """The same three samples in every form."""
    np.savez(tmp_path / "rows.npz", y=VALUES)
    polygraphy(tmp_path / "polygraphy.json")
    for folder in ("trtexec", "npz", "raw", "new_raw"):
        (tmp_path / folder).mkdir()
    for number, row in zip((1, 2, 10), VALUES, strict=True):
        trtexec(tmp_path / "trtexec" / f"out{number}.json", row)
        np.savez(tmp_path / "npz" / f"out{number}.npz", y=row[None])
        for folder, name in (("raw", "y.1.4.Float.raw"), ("new_raw", "y.output.1.4.fp32.raw")):
            (tmp_path / folder / f"sample{number}").mkdir()
            row.tofile(tmp_path / folder / f"sample{number}" / name)
        row.tofile(tmp_path / "new_raw" / f"sample{number}" / "x.input.1.4.fp32.raw")
    return {path.name: path for path in tmp_path.iterdir()}


@pytest.mark.parametrize("form", ["rows.npz", "polygraphy.json", "trtexec", "npz", "raw", "new_raw"])
def test_every_form_gives_the_same_outputs_in_the_order_of_the_samples(
    form: str, forms: dict[str, Path]
) -> None:
    found = played(open_stored(forms[form]))
    assert [tuple(outputs) for outputs in found] == [("y",)] * 3
    np.testing.assert_array_equal(np.concatenate([outputs["y"] for outputs in found]), VALUES)


def test_stored_outputs_compare_with_a_model(forms: dict[str, Path]) -> None:
    found = compare(Scripted(identity), open_stored(forms["rows.npz"]), rows(VALUES), CompareOptions())
    assert found.candidate == "stored outputs rows.npz"
    assert found.outputs[0].measures[0].value == pytest.approx(1.0)


def test_arrays_of_different_length_are_the_outputs_of_one_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", boxes=np.zeros((5, 4)), scores=np.zeros((3,)))
    (outputs,) = played(open_stored(tmp_path / "one.npz"))
    assert outputs["boxes"].shape == (5, 4)


def test_bfloat16_is_read_from_its_bits(tmp_path: Path) -> None:
    np.array([0x3F80, 0xC000], np.uint16).tofile(tmp_path / "y.1.2.bf16.raw")
    np.testing.assert_array_equal(played(open_stored(tmp_path))[0]["y"], [[1.0, -2.0]])


def test_more_samples_than_stored_outputs_are_refused(forms: dict[str, Path]) -> None:
    with pytest.raises(InputFileError, match="outputs of 3 samples, but more"):
        compare(Scripted(identity), open_stored(forms["rows.npz"]), rows(np.eye(4)), CompareOptions())


def bad(tmp_path: Path, name: str, content: bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.npz", None),
        ("empty.npz", b""),
        ("text.npz", b"hello"),
        ("short.npz", b"PK\x03\x04broken"),
        ("empty.json", b""),
        ("list.json", b"[]"),
        ("other.json", b'{"a": 1}'),
        ("numbers.json", b"[1, 2]"),
        ("runner.json", b'{"lst": [["r", [{"outputs": {"y": {"array": "!!"}}}]]]}'),
        ("shape.json", b'[{"name": "y", "dimensions": "1x3", "values": [1, 2]}]'),
        ("nothing.json", b'{"lst": [["r", [{"outputs": {}}]]]}'),
        ("y.raw", b"\0" * 8),
        ("y.1.4.Float.raw", b"\0" * 8),
        ("y.1.4.Nonsense.raw", b"\0" * 16),
        ("y.txt", b"1 2 3"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_stored_output_is_refused_with_its_path(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / name if content is None else bad(tmp_path, name, content)
    with pytest.raises(InputFileError) as caught:
        open_stored(path)
    assert caught.value.where is not None
    assert caught.value.where.startswith(str(path))


def test_pickled_objects_are_never_restored(tmp_path: Path) -> None:
    np.savez(tmp_path / "objects.npz", y=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputFileError):
        open_stored(tmp_path / "objects.npz")


def test_samples_must_have_the_same_outputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", y=VALUES[:1])
    np.savez(tmp_path / "b.npz", z=VALUES[:1])
    with pytest.raises(InputFileError, match="different outputs in sample 1"):
        open_stored(tmp_path)
