"""Converts the float part of a model to a narrower type for strongly typed networks, with or without Q/DQ."""
