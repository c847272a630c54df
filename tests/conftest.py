"""Properties are checked on the same examples everywhere, and what takes long is marked in one place."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "gate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gate")

HERE = Path(__file__).resolve().parent
SLOW = {
    "audit/test_verdicts_on_builds.py": "one engine for each small graph",
    "buildlog/test_corpus.py": "reads every log beside the checkout",
    "docs/test_pages.py": "runs the commands of every page",
    "faults/test_faults.py": "kills commands at many places",
    "fuzz/test_logs.py": "thousands of damaged logs",
    "graph/test_exports.py": "builds the exports of other tools",
    "house/test_wheel.py": "makes and installs a wheel",
    "pages/test_pages.py": "opens every page of explain",
    "pipeline/test_autofix.py": "several engines for each fix",
    "pipeline/test_autofix_limits.py": "several engines for each fix",
    "pipeline/test_cluster.py": "starts Dask workers",
    "pipeline/test_fix_costs.py": "several engines for each fix",
    "pipeline/test_limit.py": "searches the nodes that stay float",
    "pipeline/test_surroundings.py": "runs the command in many environments",
    "pipeline/test_third_party.py": "whole runs of what people bring",
    "placement/test_fixes_of_vetoes.py": "an engine for each printed setting",
    "placement/test_rule_evidence.py": "builds what the rules say of TensorRT",
    "report/test_browser.py": "starts Chromium",
    "sweep/test_elsewhere.py": "whole sweeps",
    "sweep/test_gpu_speed.py": "whole sweeps",
    "sweep/test_study.py": "kills a worker before every statement",
    "sweep/test_without_engine.py": "whole sweeps, on Dask too",
    "sweep/test_workers.py": "kills workers, connections and PostgreSQL servers",
    "third_party/test_example_package.py": "whole runs with a package of one's own",
    "third_party/test_installed_plugins.py": "installs a package",
}
"""Files that `make test` leaves to `make test-all`, and why they take long; single tests are marked where they stand."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.path.relative_to(HERE).as_posix() in SLOW:
            item.add_marker(pytest.mark.slow)
