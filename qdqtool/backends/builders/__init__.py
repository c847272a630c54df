"""Builders of engines: each file is one builder, with a `PLUGIN` that fulfils `qdqtool.core.protocols.Builder`."""
