"""Checks of data: each check is a file, and `qdqtool explain CODE` prints its docstring."""
