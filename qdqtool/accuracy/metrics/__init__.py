"""Metrics: each file here is one, with a `PLUGIN`."""
