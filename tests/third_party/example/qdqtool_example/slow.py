"""A family of patterns that takes its time to import."""

import time

time.sleep(1.2)
PLUGIN = ()
