"""A plug-in that ends the program."""

import sys

sys.exit("the example leaves")
