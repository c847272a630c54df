"""The vocabulary of TensorRT: which builder is meant, and what its operators do with values."""
