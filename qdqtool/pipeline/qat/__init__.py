"""Quantization-aware training: a PyTorch network in, a PTQ and a QAT run folder and their table out."""
