"""Sections of the report, one file each: what it reads, and how it is shown on the page and on the terminal."""
