"""The builder of TensorRT 8.6 to 11 talking of itself: backends, subgraphs, cached results, streams, limits."""

from qdqtool.buildlog.sentence import Family, says

PLUGIN = Family(
    sentences=(
        says("memory-scratch", "Max Scratch Memory: {bytes}", "Max Scratch Memory: 935424 bytes"),
        says(
            "convergence-mode",
            "Compiler backend convergence mode enabled",
            "Compiler backend convergence mode enabled",
        ),
        says(
            "tactic-out-of-memory",
            "UNSUPPORTED_STATE: Skipping tactic {tactic} due to insufficient memory on requested size of {bytes:int} "
            "detected for tactic {id}.",
            "UNSUPPORTED_STATE: Skipping tactic 0 due to insufficient memory on requested size of 2688 detected for "
            "tactic 0x0000000000000000.",
        ),
    )
)
