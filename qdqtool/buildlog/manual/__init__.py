"""What the words of a log mean: passes of the optimizer, names of kernels, memory formats."""
