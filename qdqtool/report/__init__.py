"""From the results of the steps to one report, and from the report to the terminal and to a page."""
