"""Message patterns that collectors handle: one file per subject, named like the collector in `buildlog.collectors`."""
