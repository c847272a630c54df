"""What every build goes through, for every backend: guards before it, a cache, drafts, and words for what goes wrong."""
