"""Gives the float part of a model a narrower type, as strongly typed networks need it, with or without Q/DQ."""
