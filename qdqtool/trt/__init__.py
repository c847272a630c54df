"""The vocabulary of TensorRT: target builders, properties of operators, and names of layers and kernels."""
