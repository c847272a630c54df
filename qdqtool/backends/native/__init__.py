"""Code shared by TensorRT and TensorRT for RTX: a child process loads the library and makes the calls both have."""
