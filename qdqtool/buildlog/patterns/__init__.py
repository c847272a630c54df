"""Message patterns that collectors handle: one file per subject, named as the collector in `buildlog.collectors` is."""
