"""The builder of TensorRT 8.6 to 11 talking of itself: backends, subgraphs, cached results, streams, limits."""

from qdqtool.buildlog.pattern import PatternSet, message

PLUGIN = PatternSet(
    patterns=(
        message("memory-scratch", "Max Scratch Memory: {bytes}", "Max Scratch Memory: 935424 bytes"),
        message(
            "convergence-mode",
            "Compiler backend convergence mode enabled",
            "Compiler backend convergence mode enabled",
        ),
        message(
            "tactic-out-of-memory",
            "UNSUPPORTED_STATE: Skipping tactic {tactic} due to insufficient memory on requested size of {bytes:int} "
            "detected for tactic {id}.",
            "UNSUPPORTED_STATE: Skipping tactic 0 due to insufficient memory on requested size of 2688 detected for "
            "tactic 0x0000000000000000.",
        ),
    )
)
