"""Metrics: each file in this package is a metric, with a `PLUGIN`."""
