"""Charts as SVG: bars, stacked shares, scatter plots, histograms."""
