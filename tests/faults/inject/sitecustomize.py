"""Python imports this at its start where this folder is on PYTHONPATH: child processes count and fail as their parent does."""

# ruff: noqa: PTH100, PTH120

import os
import sys

if "QDQTOOL_FAULTS" in os.environ:
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import points

    sys.path.pop(0)
    points.install()
    points.begin()
