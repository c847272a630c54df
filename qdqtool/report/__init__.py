"""Turns the results of the steps into one report, and shows it on the terminal or as a page."""
