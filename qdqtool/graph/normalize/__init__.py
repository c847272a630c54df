"""Repairs: one per file, each makes one habit of other quantizers legal and fast for TensorRT."""
