"""Checks of data: a check is a file, its docstring what `qdqtool explain CODE` prints."""
