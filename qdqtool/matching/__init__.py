"""Building blocks of rules: the type of a rule, the flow of INT8 values, subgraph patterns, compute nodes and their operands."""
