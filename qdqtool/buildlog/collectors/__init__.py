"""Books: each listens to some sentences of a run and keeps one part of what they tell."""
