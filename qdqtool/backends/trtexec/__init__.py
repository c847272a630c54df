"""NVIDIA's command-line builder `trtexec`: finding it, its command lines, and what its output tells."""
