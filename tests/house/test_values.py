"""What crosses a module border is frozen."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import pytest
from pydantic import BaseModel

import qdqtool
import qdqtool.core


def modules_of(package: str, path: list[str]) -> list[str]:
    return sorted(found.name for found in pkgutil.walk_packages(path, f"{package}."))


CORE = modules_of("qdqtool.core", list(qdqtool.core.__path__))


@pytest.mark.parametrize("name", CORE)
def test_every_noun_of_the_library_is_frozen(name: str) -> None:
    module = importlib.import_module(name)
    for value in vars(module).values():
        if not isinstance(value, type) or value.__module__ != name:
            continue
        if dataclasses.is_dataclass(value):
            assert value.__dataclass_params__.frozen, value
        if issubclass(value, BaseModel):
            assert value.model_config.get("frozen"), value
