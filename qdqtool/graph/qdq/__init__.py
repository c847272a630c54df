"""Quantization in a graph: reads it (`lift`), writes it (`lower`), changes it slot by slot, and removes it."""
