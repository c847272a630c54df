"""Collectors: each handles some message patterns of a run and keeps one part of its facts."""
