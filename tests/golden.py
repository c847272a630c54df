"""Golden material that travels with the project: real logs and layer dumps, and what is known of them."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
REWRITE = "REWRITE_GOLDEN"
"""Environment variable under which tests write what they find instead of comparing with it."""


def names(kind: str) -> list[str]:
    """Names of all "logs" or "layers"."""
    return sorted(path.name.removesuffix(".xz") for path in (DATA / kind).glob("*.xz"))


def path_of(kind: str, name: str) -> Path:
    return DATA / kind / f"{name}.xz"


def text_of(kind: str, name: str) -> str:
    return lzma.decompress(path_of(kind, name).read_bytes()).decode("utf-8", "replace")


def expected(kind: str, name: str, found: dict[str, object]) -> dict[str, object]:
    """What is known of a file; with the environment variable set, what was found becomes it."""
    book = DATA / f"{kind}.json"
    known: dict[str, dict[str, object]] = json.loads(book.read_text("utf-8")) if book.is_file() else {}
    if os.environ.get(REWRITE):
        known[name] = json.loads(json.dumps(found))
        book.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", "utf-8")
    return known.get(name, {})
