"""Proposers of changes for a noisy network, one file each. `qdqtool.pipeline.search.proposal` has their shared parts."""
