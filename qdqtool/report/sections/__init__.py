"""Sections of the report, one file each, with what they read and how they are shown on the page and the terminal."""
