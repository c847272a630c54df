"""Comparison of two models on the same samples: metrics, task accuracy, worst samples."""
