"""Steps that every build shares: guards before the build, a cache, draft files, and messages for failures."""
