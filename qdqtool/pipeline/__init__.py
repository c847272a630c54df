"""The stairs: steps of the straight line, and what is made of many runs of it."""
