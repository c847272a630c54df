"""Puts a fix to the command line: what it holds is parsed by the very commands and recipes that would take it."""

from __future__ import annotations

import re
import shlex

from qdqtool.cli.app import application
from qdqtool.core.advice import is_followed, settings_in
from qdqtool.core.target import Target
from qdqtool.graph.view import Model
from qdqtool.matching.weights import quantize_activations, tensors_without_range
from qdqtool.pipeline import recipes
from qdqtool.placement.repair import on_request, repair

_COMMAND = re.compile(r"`qdqtool ([^`]*)`")


def follow(fix: str) -> None:
    """Fails where a fix is no advice that can be followed as it is printed, and none that says that there is none."""
    assert is_followed(fix), fix
    assert "an edit of the model" not in fix
    for command in _COMMAND.findall(fix):
        word, *arguments = shlex.split(command)
        known = application().commands[word]
        options = {name: option for option in known.params for name in option.opts if name.startswith("-")}
        takes = iter(arguments)
        for argument in takes:
            if argument.startswith("-"):
                name, _, value = argument.partition("=")
                assert name in options, f"qdqtool {word} has no {name}: {fix}"
                if not value and not getattr(options[name], "is_flag", False):
                    assert next(takes, ""), f"{name} has no value: {fix}"
    settings = settings_in(fix)
    if settings:
        recipes.load(None, list(settings))


def applied(command: str, model: Model, target: Target) -> Model:
    """What a printed `qdqtool repair` makes of a model, through the options that the command line reads."""
    word, *arguments = shlex.split(command)[1:]
    read = application().commands[word].make_context(word, arguments).params
    asked, _ = on_request(model, to_float=read["to_float"] or (), to_int8=read["to_int8"] or ())
    made = repair(asked, target)[0]
    measured = read["samples"] == "DATA"
    return (
        quantize_activations(made, dict.fromkeys(tensors_without_range(made), 1.0))[0] if measured else made
    )
