"""Places in other tools where qdqtool takes over one step. Each file imports its tool only when it is called."""
