"""Decides where Q/DQ nodes go, and why: rules request or veto the quantization of inputs, and `decide` combines these statements."""
