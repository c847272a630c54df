"""A plug-in that was written for another release."""

raise ImportError("the example wants another release")
