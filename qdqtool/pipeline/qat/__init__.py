"""Quantization-aware training: makes a PTQ and a QAT run folder from a PyTorch network, and a table that compares them."""
