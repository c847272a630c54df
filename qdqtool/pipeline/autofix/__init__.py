"""Tries fixes with the real builder: each fix is applied, built, and kept only if the engine improved."""
