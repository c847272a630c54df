"""Proven fixes: a fix is applied, built with the real builder, and kept only if it helped."""
