"""Inference times. Candidates are measured in turns, so that slow drift has the same effect on all of them."""
