"""Lets `python -m qdqtool` start the command line."""

from qdqtool.cli import main

if __name__ == "__main__":
    main()
