"""Repairs: one per file, each makes one habit of other quantizers legal for TensorRT."""
