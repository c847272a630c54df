"""NVIDIA's command-line builder `trtexec`: how to find it, run it, and read its output."""
