"""Integrations: steps of other tools that qdqtool replaces. Each file imports its tool only when it is called."""
