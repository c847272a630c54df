"""Proven fixes: each is applied, built with the real builder, and kept only if it helped."""
