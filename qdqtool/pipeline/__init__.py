"""The steps of a run in order, and commands that consist of several runs."""
