"""Sections of the report: the files they read, and how they are shown on the page and the terminal."""
