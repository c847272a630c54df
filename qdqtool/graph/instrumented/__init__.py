"""Models that are made to measure with: watched tensors, cut pieces, switches, scales and biases as inputs."""
