"""Runs engines on a GPU, in a separate process."""
