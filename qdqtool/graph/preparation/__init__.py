"""Exact rewrites of a float model before Q/DQ nodes are placed: folding, fewer nodes, forms that TensorRT quantizes."""
