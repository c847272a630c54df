"""The door: arguments, progress, output, exit codes."""

from qdqtool.cli.app import main

__all__ = ["main"]
