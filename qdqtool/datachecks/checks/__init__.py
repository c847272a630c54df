"""Checks of data; `qdqtool explain CODE` prints its docstring."""
