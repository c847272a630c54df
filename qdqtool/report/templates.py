"""The templates of the pages: whatever they print is text, and text that no browser shows in another order."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from qdqtool.io.escaping import xml
from qdqtool.report import palette


def environment() -> Environment:
    """Templates whose every value is cleaned and escaped; `style`, `script` and `script_digest` are there for all."""
    made = Environment(
        loader=PackageLoader("qdqtool.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_cleaned,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = _asset("page.js")
    made.globals.update(
        style=Markup(palette.CLASSES + _asset("page.css")),  # noqa: S704 -- our own file
        script=Markup(script),  # noqa: S704 -- our own file
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )
    return made


def _cleaned(value: object) -> object:
    """What a template prints: text without controls and half characters; markup is made of such text already."""
    return xml(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> str:
    return (files("qdqtool.report") / "page" / name).read_text("utf-8")
