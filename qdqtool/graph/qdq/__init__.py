"""Quantization in a graph: reads it (`lift`), writes it (`lower`), changes it input by input, and removes it."""
