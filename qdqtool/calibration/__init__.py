"""Samples become histograms, and histograms become a table of ranges."""
