"""Runs engines on a GPU, in a process of their own."""
