"""Input and output of the program: text sources, tables, reports for CI, escaping, atomic files and folders."""
