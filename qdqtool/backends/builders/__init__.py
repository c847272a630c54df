"""Builders of engines: each file here is one, with a `PLUGIN` that fulfils `qdqtool.core.protocols.Builder`."""
