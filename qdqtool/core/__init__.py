"""Frozen values that all packages share, and the Protocols that backends implement."""
