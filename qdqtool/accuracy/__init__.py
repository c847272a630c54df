"""How far two models are apart on the same samples: metrics, task accuracy, worst samples."""
