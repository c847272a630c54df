"""What every build goes through, whoever builds: guards before it, a cache, drafts, and words for what goes wrong."""
