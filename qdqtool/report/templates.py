"""Templates of the pages. All printed values are escaped, and characters that change the order of text are cleaned."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from qdqtool.io.escaping import xml
from qdqtool.report import svg


def environment() -> Environment:
    """Return the templates, which clean and escape every value. All of them can use `style`, `script` and `script_digest`."""
    templates = Environment(
        loader=PackageLoader("qdqtool.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _asset("page.js")
    templates.globals.update(
        style=Markup(svg.CLASSES + _asset("page.css")),  # noqa: S704 -- our own file
        script=Markup(script),  # noqa: S704 -- our own file
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return templates


def _clean_value(value: object) -> object:
    """Remove control characters and lone surrogates from a printed value; markup is already clean."""
    return xml(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    return (files("qdqtool.report") / "page" / name).read_text("utf-8")
