"""Errors: what the builder says when it gives up, and what it says after that."""

from qdqtool.buildlog.sentence import Family, says

PLUGIN = Family(
    sentences=(
        says(
            "engine-not-created",
            "Engine could not be created from network",
            "Engine could not be created from network",
        ),
    )
)
