"""What is here is found, what is missing comes with the command that gets it."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from qdqtool.backends import inventory
from qdqtool.backends.gpu import Gpu
from qdqtool.backends.inventory import INVENTORY, Item, take_inventory
from tests.backends import stand_in_trtexec

AMPERE = Gpu(name="RTX 3090", sm=86, memory_mib=24258, cuda=(12, 4))
MAXWELL = Gpu(name="Tegra X1", sm=53, memory_mib=3955, cuda=(10, 2))


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without trtexec and without a GPU."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("QDQTOOL_TRTEXEC", raising=False)
    monkeypatch.setattr(inventory, "gpus", lambda: ())


def found() -> dict[str, Item]:
    return {item.name: item for item in take_inventory().items}


def test_whatever_does_not_work_comes_with_a_fix() -> None:
    items = take_inventory().items
    assert all(bool(item.fix) == (item.state != "works") for item in items)
    assert len({item.name for item in items}) == len(items)


def test_a_machine_without_a_gpu_is_told_what_works_all_the_same() -> None:
    items = found()
    assert items["NVIDIA GPU"].state == "missing"
    assert "not needed" in items["NVIDIA GPU"].fix
    assert "no GPU needed" in items["builder rtx"].enables
    assert items["onnx"].state == "works"


def test_a_missing_builder_comes_with_its_command() -> None:
    items = found()
    assert items["builder trtexec"].state == "missing"
    assert "QDQTOOL_TRTEXEC" in items["builder trtexec"].fix
    if items["builder trt"].state == "missing":
        assert items["builder trt"].fix == "pip install 'qdqtool[trt]'"


@pytest.mark.parametrize(
    ("gpu", "state", "words"),
    [
        pytest.param(
            AMPERE, "works", "RTX 3090 (sm86, 24258 MiB, CUDA up to 12.4): INT8", id="with tensor cores"
        ),
        pytest.param(MAXWELL, "limited", "no INT8 tensor cores", id="without tensor cores"),
    ],
)
def test_a_gpu_is_judged_by_its_tensor_cores(
    gpu: Gpu, state: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "gpus", lambda: (gpu,))
    item = found()["NVIDIA GPU"]
    assert item.state == state
    assert words in item.detail


@pytest.mark.skipif(os.name != "posix", reason="the stand-in is a script")
def test_a_trtexec_without_a_gpu_is_of_limited_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDQTOOL_TRTEXEC", str(stand_in_trtexec.install(tmp_path, 101600)))
    assert found()["builder trtexec"].detail == "10.16.0, but no GPU"
    monkeypatch.setattr(inventory, "gpus", lambda: (AMPERE,))
    assert found()["builder trtexec"].state == "works"


def test_the_inventory_survives_its_file(tmp_path: Path) -> None:
    taken = take_inventory()
    INVENTORY.write(tmp_path / "doctor.json", taken)
    assert INVENTORY.read(tmp_path / "doctor.json") == taken


def test_every_package_of_an_extra_is_looked_for_and_got_by_it() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[project.")[0]
    items = found()
    extras = re.findall(r"^([\w-]+) = \[(.*?)\](?=\s)", section, re.MULTILINE | re.DOTALL)
    assert len(extras) >= 13
    for extra, listed in extras:
        if extra in {
            "rtx",
            "trt",
            "openvino",
            "test",
            "docs",
            "dev",
        }:  # builders, devices, and what the project itself works with
            continue
        packages = {name for name in re.findall(r'"([\w-]+)', listed) if name != "qdqtool"}
        assert packages == set(inventory._EXTRAS[extra])
        for package in packages & items.keys():
            assert items[package].fix in {"", f"pip install 'qdqtool[{extra}]'"}
        assert packages <= items.keys() or (extra == "zstd" and sys.version_info >= (3, 14))
