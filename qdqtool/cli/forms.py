"""Output formats of findings: for people, for scripts, and for tools that show findings beside the code."""

from __future__ import annotations

FORMS = ("text", "json", "sarif", "junit", "markdown", "github")


def check_form(form: str) -> None:
    """Refuse an unknown output format.

    Raises:
        UsageError: no form is called so.
    """
    from qdqtool.errors import UsageError

    if form not in FORMS:
        raise UsageError(f"unknown format {form!r}", fix=f"choose {', '.join(FORMS)}", where="--format")
