"""Ways to choose a range from a histogram: each file here is a calibrator, named like the file.

Its docstring is what `qdqtool explain` prints, its constant `PLUGIN` a `calibrators.Calibrator`.
"""
