"""Plug-ins of qdqtool, one file for each; `pyproject.toml` says what they are called."""
