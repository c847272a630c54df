"""Methods that choose a range from a histogram. Each file is a calibrator with the name of the file.

Its docstring is what `qdqtool explain` prints, its constant `PLUGIN` a `calibrators.Calibrator`.
"""
