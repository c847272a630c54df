"""What rules are made of: the type of a rule, the flow of INT8 values, shapes of subgraphs, products and their factors."""
