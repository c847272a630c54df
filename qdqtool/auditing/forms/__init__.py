"""An audit in the forms that continuous integration understands: one file per form, each with a function `write`."""
