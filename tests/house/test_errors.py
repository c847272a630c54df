"""The error tree: unique exit codes, and a fix in every error."""

from __future__ import annotations

import pickle

import pytest

from qdqtool import errors

KINDS = errors.QdqError.__subclasses__()


def test_exit_codes_are_unique() -> None:
    codes = [kind.exit_code for kind in KINDS]
    assert sorted(codes) == sorted(set(codes)) == [1, 2, 3, 4, 5, 70, 129, 130, 143]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_tree_in_the_docstring_names_every_error_with_its_code(kind: type[errors.QdqError]) -> None:
    line = next(line for line in (errors.__doc__ or "").splitlines() if kind.__name__ in line)
    assert str(kind.exit_code) in line.split()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_needs_a_fix(kind: type[errors.QdqError]) -> None:
    with pytest.raises(TypeError):
        kind("something is wrong")  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_survives_the_trip_between_processes(kind: type[errors.QdqError]) -> None:
    error = pickle.loads(pickle.dumps(kind("wrong", fix="fix it", where="here")))
    assert (type(error), error.what, error.fix, error.where) == (kind, "wrong", "fix it", "here")
