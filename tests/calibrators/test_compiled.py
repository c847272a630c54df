"""Compiled loops work where nothing can be kept on disk, and say why."""

from __future__ import annotations

from typing import Any

import pytest

from calibrators import kernels as module


def test_a_function_without_a_file_is_compiled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_problems", [])
    assert module.cache_problem() is None
    namespace: dict[str, Any] = {}
    exec("def doubled(x):\n    return 2 * x", namespace)
    assert module.compile_loop(namespace["doubled"])(21) == 42
    problem = module.cache_problem()
    assert problem is not None
    assert "cache" in problem
