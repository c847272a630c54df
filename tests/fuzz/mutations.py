"""Damages files the way that gets past the first check: inside their structure, not only in their bytes."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from io import BytesIO
from typing import Any

import onnx
from google.protobuf.message import Message

from qdqtool.graph.onnx_io.walk import parts

NUMBERS = (0, 1, -1, 2, 7, 255, 256, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))
WORDS = (
    "",
    "x",
    "y",
    "nan",
    "-1",
    "1e999",
    "x" * 300,
    "\x1b]0;t\x07",
    "../../etc/passwd",
    "a/b",
    "=1+1",
    "<script>",
    "é\u202e",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    [],
    {},
    "",
    -1,
    0,
    1 << 70,
    1e308,
    float("nan"),
    "x" * 300,
    [[[[]]]],
    {"a": {"b": []}},
)


def damaged_bytes(content: bytes, dice: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Flip, cut, repeat and splice."""
    data = bytearray(content or b"\0")
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        place = dice.randrange(len(data))
        size = dice.choice((1, 2, 8, 64, 1024))
        kind = dice.randrange(7)
        if kind == 0:
            data[place] ^= 1 << dice.randrange(8)
        elif kind == 1:
            data[place : place + size] = b""
        elif kind == 2:
            data[place:place] = data[place : place + size] * dice.choice((1, 2, 50))
        elif kind == 3:
            data[place : place + 1] = str(dice.choice(NUMBERS)).encode()
        elif kind == 4:
            data[place : place + size] = dice.randbytes(min(size, 16))
        elif kind == 5:
            del data[place:]
        elif others:
            other = dice.choice(others)
            data[place:] = other[dice.randrange(len(other) or 1) :]
        data = data or bytearray(b"\0")
    return bytes(data[: 1 << 20])


def damaged_json(content: bytes, dice: random.Random) -> bytes:
    """Put values where they do not belong; JSON stays JSON."""
    try:
        root = {"": json.loads(content)}
    except ValueError:
        return damaged_bytes(content, dice)
    for _ in range(dice.choice((1, 1, 2, 5))):
        holder, key = dice.choice(_places(root))
        kind = dice.randrange(5)
        if kind == 0:
            holder[key] = deepcopy(dice.choice(VALUES))
        elif kind == 1 and isinstance(holder, dict) and holder is not root:
            del holder[key]
        elif kind == 2 and isinstance(holder, list):
            holder.extend(deepcopy(holder[:1]) * dice.choice((1, 100)))
        elif kind == 3:
            other, name = dice.choice(_places(root))
            holder[key] = json.loads(json.dumps(other[name]))
        elif kind == 4 and isinstance(holder, dict) and holder is not root:
            holder[dice.choice(WORDS)] = holder.pop(key)
    return json.dumps(root[""]).encode()


def _places(root: Any) -> list[tuple[Any, Any]]:
    found, waiting = [], [root]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        found += [(holder, key) for key in keys]
        waiting += [holder[key] for key in keys if isinstance(holder[key], (dict, list)) and holder[key]]
    return found


def damaged_zip(content: bytes, dice: random.Random) -> bytes:
    """Damage one member, and put the archive together again so that its sums are right."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, ValueError, OSError):
        return damaged_bytes(content, dice)
    name = dice.choice(sorted(members))
    if dice.randrange(8) == 0:
        members[dice.choice(WORDS) or "z"] = members.pop(name)
    else:
        head, rest = members[name][:128], members[name][128:]
        members[name] = (
            damaged_bytes(head, dice) + rest if dice.randrange(2) else damaged_bytes(members[name], dice)
        )
    written = BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for key in sorted(members):
            archive.writestr(key, members[key])
    return written.getvalue()


def damaged_model(content: bytes, dice: random.Random) -> bytes:
    """Change fields, swap operators and names, repeat and drop entries; the protobuf stays one."""
    if dice.randrange(12) == 0:
        return damaged_bytes(content, dice)
    proto = onnx.ModelProto.FromString(content)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        every = list(parts(proto))
        _change(dice.choice(every), proto, dice)
    return bytes(proto.SerializeToString())


def _change(part: Message, proto: onnx.ModelProto, dice: random.Random) -> None:
    if isinstance(part, onnx.NodeProto) and dice.randrange(3) == 0:
        part.op_type = dice.choice(_operators())
        return
    fields = [field for field in part.DESCRIPTOR.fields if field.name != "raw_data" or dice.randrange(4) == 0]
    field = (
        dice.choice([field for field, _ in part.ListFields()] or fields)
        if dice.randrange(4)
        else dice.choice(fields)
    )
    if _is_repeated(field):
        _change_list(getattr(part, field.name), field, proto, dice)
    elif field.message_type is not None:
        if dice.randrange(2):
            part.ClearField(field.name)
        else:
            getattr(part, field.name).SetInParent()
    else:
        _assign(part, field, proto, dice)


def _is_repeated(field: Any) -> bool:
    repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    return bool(repeated)


def _change_list(entries: Any, field: Any, proto: onnx.ModelProto, dice: random.Random) -> None:
    kind = dice.randrange(4)
    if kind == 0 and len(entries):
        del entries[dice.randrange(len(entries))]
    elif kind == 1 and len(entries):
        copies = [entries[dice.randrange(len(entries))]] * dice.choice((1, 1, 40))
        entries.extend([_copied(entry) for entry in copies])
    elif field.message_type is not None:
        if kind == 2 and len(entries) > 1:
            entries.append(_copied(entries[0]))
            del entries[0]
        else:
            entries.add()
    elif len(entries) and kind == 2:
        entries[dice.randrange(len(entries))] = _value(field, proto, dice)
    else:
        entries.append(_value(field, proto, dice))


def _copied(entry: Any) -> Any:
    if not isinstance(entry, Message):
        return entry
    copy = type(entry)()
    copy.CopyFrom(entry)
    return copy


def _assign(part: Message, field: Any, proto: onnx.ModelProto, dice: random.Random) -> None:
    if dice.randrange(6) == 0:
        part.ClearField(field.name)
    else:
        setattr(part, field.name, _value(field, proto, dice))


def _value(field: Any, proto: onnx.ModelProto, dice: random.Random) -> Any:
    """A value that protobuf lets pass and that hardly anybody expects."""
    if field.enum_type is not None:
        return dice.choice([entry.number for entry in field.enum_type.values])
    if field.type == field.TYPE_BYTES:
        return dice.choice((b"", b"\xff\xfe", b"\0" * 4, dice.randbytes(8), b"secret.bin"))
    if field.type == field.TYPE_STRING:
        names = [name for node in proto.graph.node for name in (*node.input, *node.output, node.name)]
        return dice.choice((*names, *WORDS))
    if field.cpp_type in {field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE}:
        return dice.choice((0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan")))
    number = dice.choice((*NUMBERS, dice.randrange(-4, 12)))
    small = field.cpp_type in {field.CPPTYPE_INT32, field.CPPTYPE_UINT32}
    unsigned = field.cpp_type in {field.CPPTYPE_UINT32, field.CPPTYPE_UINT64}
    bits = (32 if small else 64) - (not unsigned)
    return max(0 if unsigned else -(1 << bits), min(number, (1 << bits) - 1))


@lru_cache
def _operators() -> list[str]:
    return sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})
