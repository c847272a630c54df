"""Decides where Q/DQ nodes go, and why: rules give opinions, and `decide` combines them."""
