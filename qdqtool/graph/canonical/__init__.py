"""Normal form of a loaded model: one operator set, plain initializers, unique names, sorted nodes, shapes."""
