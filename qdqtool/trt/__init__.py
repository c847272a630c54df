"""The vocabulary of TensorRT: which builder is meant, what its operators do with values, what it calls layers and kernels."""
