"""The shelf of log sentences: one file per family, `PLUGIN` is its `Family`."""
