"""Inference times: candidates are measured in turns, so that slow drift affects all of them equally."""
