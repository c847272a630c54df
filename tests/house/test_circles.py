"""No two files import each other in a loop, not even inside functions: every file can be read after those it stands on."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("qdqtool", exclude_type_checking_imports=True, cache_dir=None)
    assert len(graph.modules) > 100  # grimp found the package
    # raises CycleError, which names the files of the circle
    TopologicalSorter(
        {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    ).prepare()
