"""Models instrumented for measurements: watched tensors, cut pieces, switches, and scales and biases as inputs."""
