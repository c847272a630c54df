"""What loading makes of any model: one operator set, plain initializers, unique names, sorted nodes, shapes."""
