"""What TensorRT and TensorRT for RTX share: a child process that loads the library, and the calls both know."""
