"""Quantization in a graph: read it (`lift`), write it (`lower`), change it slot by slot, take it out."""
