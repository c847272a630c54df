"""Message patterns that collectors handle: one file per subject, `PLUGIN` is its `PatternSet`."""
