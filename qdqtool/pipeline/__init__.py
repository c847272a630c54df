"""The steps of a run in their order, and the commands that consist of many runs."""
