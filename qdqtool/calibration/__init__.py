"""Calibration: samples become histograms, and histograms become a table of ranges."""
