"""Inference times. Models or engines are measured alternately, so that slow drift affects all of them alike."""
