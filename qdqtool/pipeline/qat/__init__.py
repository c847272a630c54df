"""Quantization-aware training: turns a PyTorch network into a PTQ and a QAT run folder, and a table of both."""
