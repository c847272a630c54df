"""Fixes that are proven: each is applied, built with the real builder, and kept only where it helped."""
