"""Code shared by TensorRT and TensorRT for RTX. A child process loads the library and makes the calls that both have."""
