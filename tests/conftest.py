"""Properties are checked on the same examples everywhere, and what takes long is marked in one place."""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from qdqtool.backends.building.procedure import CACHE_VARIABLE

settings.register_profile(
    "gate", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gate")

HERE = Path(__file__).resolve().parent
SLOW = {
    "api/test_inputs.py": "quantizes models and samples of every form",
    "api/test_results.py": "makes a result with every call of the library",
    "audit/test_verdicts_on_builds.py": "one engine for each small graph",
    "backends/test_inventory.py": "asks every builder in a process of its own",
    "buildlog/test_corpus.py": "reads every log beside the checkout",
    "docs/test_pages.py": "runs the commands of every page",
    "faults/test_faults.py": "kills commands at many places",
    "fuzz/test_logs.py": "thousands of damaged logs",
    "generated/test_generated_networks.py": "many commands on generated networks",
    "generated/test_one_voice.py": "builds generated networks",
    "graph/test_exports.py": "builds the exports of other tools",
    "house/test_new_rule.py": "makes a rule and runs its test",
    "house/test_wheel.py": "makes and installs a wheel",
    "pages/test_pages.py": "opens every page of explain",
    "pipeline/test_autofix.py": "several engines for each fix",
    "pipeline/test_autofix_limits.py": "several engines for each fix",
    "pipeline/test_cluster.py": "starts Dask workers",
    "pipeline/test_fix_costs.py": "several engines for each fix",
    "pipeline/test_limit.py": "searches the nodes that stay float",
    "pipeline/test_outliers.py": "calibrates networks again and again",
    "pipeline/test_surroundings.py": "runs the command in many environments",
    "pipeline/test_third_party.py": "whole runs of what people bring",
    "pipeline/test_uneven.py": "calibrates networks again and again",
    "placement/test_fixes_of_vetoes.py": "an engine for each printed setting",
    "placement/test_rule_evidence.py": "builds what the rules say of TensorRT",
    "report/test_browser.py": "starts Chromium",
    "sweep/test_elsewhere.py": "whole sweeps",
    "sweep/test_gpu_speed.py": "whole sweeps",
    "sweep/test_hosts.py": "starts ssh servers",
    "sweep/test_study.py": "kills a worker before every statement",
    "sweep/test_without_engine.py": "whole sweeps, on Dask too",
    "sweep/test_workers.py": "kills workers, connections and PostgreSQL servers",
    "third_party/test_example_package.py": "whole runs with a package of one's own",
    "third_party/test_installed_plugins.py": "installs a package",
}
"""Files that `make test` leaves to `make test-all`, and why they take long; single tests are marked where they stand."""


LONG = {
    "test_a_script_runs_in_its_quick_form": (
        "logs",
        "consistency",
        "calibration",
        "cache_scales",
        "guide_figures",
        "run_figures",
    ),
    "test_the_accuracies_of_a_recipe_are_measured_again_and_lie_in_their_intervals": (
        "detector-int8",
        "mixed-best",
        "weights-only-int8",
        "llm-nvfp4",
        "conv-fp8",
        "int8-fp16-mixed",
        "transformer-int8",
        "llm-int4-weights",
    ),
    "test_the_tables_are_measured_again_and_hold": ("kws_dscnn", "vit_cifar10_pgd_2_3_16"),
    "test_nothing_is_lost_at_one_point_of_each_kind": ("sweep", "fix", "run"),
    "test_no_engine_contradicts_what_an_audit_prints": (
        "two_gates",
        "excite",
        "recurrent",
        "unet",
        "unet with groups",
        "gated",
        "600 tokens",
        "pyramid",
        "neck",
        "silu_cnn",
        "inverted_swish",
    ),
    "test_a_sweep_outlives_a_server_that_restarts": ("before the first connection",),
    "test_workers_that_die_and_lose_their_connections_all_the_time_find_what_one_finds": ("",),
    "test_types_scales_and_biases_can_be_searched": ("",),
    "test_workers_that_share_a_folder_all_end_well": ("",),
    "test_a_database_whose_making_is_cut_short_is_made_again": ("kill",),
    "test_a_sweep_killed_again_and_again_ends_with_the_same_result": ("",),
    "test_after_a_repair_of_many_lint_has_no_error": ("",),
    "test_constants_compute_what_zero_points_do_in_many_generated_networks": ("",),
    "test_commands_keep_the_function_of_many_generated_networks": (
        "260-359",
        "360-459",
        "460-559",
        "560-659",
        "660-759",
        "760-859",
        "860-959",
        "960-1059",
    ),
}
"""Cases that take more than half a minute and whose kind has cheaper cases: `make test-long` runs them, CI does not."""


OVER_MANY_GRAPHS = frozenset(
    {
        "test_a_code_stands_for_the_nodes_that_lint_names",
        "test_a_command_that_an_error_prints_removes_it",
        "test_a_repair_names_every_error_that_it_leaves",
        "test_commands_and_options_in_fixes_exist",
        "test_every_command_ends_in_words",
        "test_every_node_is_in_one_layer_and_every_q_and_dq_has_one_fate",
        "test_every_scale_comes_back_and_as_a_range",
        "test_findings_say_what_is_wrong_what_follows_and_what_to_do",
        "test_insert_then_find_returns_the_same_placement_and_scales",
        "test_lifting_what_was_lowered_gives_it_back",
        "test_lowering_what_was_lifted_computes_the_same",
        "test_no_model_of_the_zoo_changes_when_its_weights_wait",
        "test_repairing_leaves_no_error_for_lint_or_refuses_a_contradiction",
        "test_the_finding_is_gone_when_its_fix_is_followed",
        "test_the_fixes_of_lint_can_be_followed",
        "test_the_model_holds_the_stored_values_that_were_chosen",
        "test_what_placement_makes_lint_accepts_and_repair_leaves_alone",
        "test_what_tensorrt_refuses_or_runs_in_float_is_int8_after_the_repair",
        "test_without_the_prefilter_a_real_log_says_the_same",
        "test_a_product_named_float_reads_floats_and_the_others_read_what_they_read",
        "test_streams_that_the_caller_closed_go_nowhere_and_into_no_file",
    }
)
"""Laws over so many cases that `make test` takes every fourth of them, always the same; `make test-all` takes all."""
SHARE = 4


BUILDS_ANEW = ("backends", "faults")
"""Folders whose tests are about builds themselves. All others share finished builds, of which a third would be repeated."""


@pytest.fixture(scope="session")
def finished_builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of finished builds of all tests of this session, whichever process runs them."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "finished-builds"


@pytest.fixture(autouse=True)
def _share_builds(
    request: pytest.FixtureRequest, finished_builds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not any((HERE / folder) in request.path.parents for folder in BUILDS_ANEW):
        monkeypatch.setenv(CACHE_VARIABLE, str(finished_builds))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of slow files, and most cases of the laws that have very many."""
    for item in items:
        if not item.path.is_relative_to(HERE):
            continue
        name = getattr(item, "originalname", "")
        law = name in OVER_MANY_GRAPHS
        if item.path.relative_to(HERE).as_posix() in SLOW or (law and crc32(item.name.encode()) % SHARE):
            item.add_marker(pytest.mark.slow)
        if any(item.name == (f"{name}[{case}]" if case else name) for case in LONG.get(name, ())):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.long)
