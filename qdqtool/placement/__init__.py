"""Decides where Q/DQ nodes go, and says why: rules give opinions, `decide` counts them."""
