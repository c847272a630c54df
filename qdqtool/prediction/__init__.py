"""Says what the optimizer will do with a Q/DQ graph, without building it.

Two profiles: `classic` for TensorRT 8.x to 10.x, whose passes and engine layers the build logs show, and `rtx` for
TensorRT for RTX, which hands everything to one compiler.
"""
