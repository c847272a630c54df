"""Backends: what builds engines and what runs models; one file or folder each."""
