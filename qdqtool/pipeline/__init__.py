"""The steps in their order, and what is made of many runs of them."""
