"""Plug-ins as another distribution offers them."""
