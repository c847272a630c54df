"""A `tensorrt` module whose one engine computes y = tanh(x W), for x of any number of rows, on a GPU made of bytes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from qdqtool.backends.timing import engine_times
from tests.backends import stand_in_tensorrt

WEIGHTS = np.random.default_rng(5).normal(size=(3, 5)).astype(np.float32)
DEADLY = 666.0
"""An input that kills the process that computes it."""


def module(release: str = "10.9.0.34") -> Any:
    """The module, with its driver in the place of libcuda."""
    driver = stand_in_tensorrt.Driver()
    engine_times.driver = lambda: driver
    trt: Any = stand_in_tensorrt.make(release)
    shapes: dict[str, tuple[int, ...]] = {"x": (1, 3)}
    addresses: dict[str, int] = {}

    def set_input_shape(_context: Any, name: str, shape: tuple[int, ...]) -> bool:
        shapes[name] = tuple(shape)
        return len(shape) == 2 and shape[0] <= 8 and shape[1] == 3

    def execute(_context: Any, _stream: int) -> bool:
        x = np.frombuffer(driver.memory[addresses["x"]], np.float32).reshape(shapes["x"])
        if (x == DEADLY).any():
            os.kill(os.getpid(), 9)
        driver.memory[addresses["y"]][:] = np.tanh(x @ WEIGHTS).astype(np.float16).tobytes()
        return True

    trt.IExecutionContext.plays = {
        "set_input_shape": set_input_shape,
        "get_tensor_shape": lambda _, name: shapes["x"] if name == "x" else (shapes["x"][0], 5),
        "set_tensor_address": lambda _, name, address: addresses.update({name: address}) or True,
        "execute_async_v3": execute,
    }
    return trt
