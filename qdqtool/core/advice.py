"""Advice: fixes that name commands and settings, fixes that are merged, and the claims that a fix makes.

`promises` returns facts that the engine must show after a fix; `core.wording` has the commands that a user can type.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from functools import lru_cache
from glob import escape

from qdqtool.core.claims import IS_GONE_THEN, RUNS_THEN, Assertion, Claim, of_fix
from qdqtool.core.findings import Severity
from qdqtool.core.wording import REPAIR, Action, Command, Setting, actions
from qdqtool.errors import InputFileError

_LIST_SETTING = re.compile(
    r"""--set (?P<word>'[a-z_]+\.[a-z_]+=\[[^']*'(?:"'"'[^']*')*)(?P<rest>.*)""", re.DOTALL
)
"""A setting of a list, in one word as `shlex.quote` writes it, and the text after it."""
_MOST_NAMES = 100_000
"""Most names in the list of a setting that is merged with others."""

_FOLLOWED = re.compile(r"`qdqtool [a-z]|--set \S|python -c \"")
"""The parts of a fix that a user can type: a command of this tool, a setting of a recipe, or a line of Python."""
_NOTHING = "nothing to do"
IN_MODEL = f"{_NOTHING} by a command; in the model"
"""Start of a fix that only the author of the model can make."""
BY_BUILDER = f"{_NOTHING}: the builder makes this kernel"
"""Start of a fix for a kernel that no command removes, and that another model may not have: the check claims why it exists."""
NEVER_ONE_KERNEL = f"{_NOTHING}: no Q/DQ makes it one kernel"
"""Start of a fix for an attention in several kernels that no builder fuses. Q/DQ may still trade kernels for bytes."""
_LEFT = re.compile(rf"{_NOTHING}(?: with this release)?(?::|$)")
"""Start of a fix that offers no alternative. "nothing to do where ..." and "nothing to do; ..." do offer one and do not match."""
_REPAIR = "`qdqtool repair"
_COMMAND = re.compile(r"`qdqtool (?P<command>[a-z][^`]*)`")
_OUTPUTS = {"repair": "repaired.onnx", "convert": "fp16.onnx"}
"""Commands that write a model, with the name of their output."""
FLOATS, _INTEGERS = "--float", "--int8"
_NODES = re.compile(rf" (?:{FLOATS}|{_INTEGERS}) (?:'[^']*'|[^\s`'])+")
"""One option with its node, quoted as a shell needs it."""
_PLAIN = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[a-z_/][\w/.-]*", re.IGNORECASE | re.ASCII)
"""Words that a YAML list in a recipe reads as text without quotes."""
_END = re.compile(rf"({_REPAIR}[^`]*)`")
_MOST_NODES = 3
"""Most nodes that a command names one by one, if a code can name them."""


_TRIES, _LOOKS = "fix", frozenset({"audit", "engine", "explain", "lint", "place", "sensitivity"})


def promises(fix: str, *, of_finding: bool) -> tuple[Claim, ...]:
    """Return what a fix claims about the engine after it, for example that the finding disappears.

    For a node: it runs in a low-bit format. A change of the model by its author promises nothing.

    >>> [str(claim.says.value) for claim in promises("--set place.last_layer=int8", of_finding=False)]
    ['runs_quantized']
    >>> [str(claim.says.value) for claim in promises("nothing to do: it is small", of_finding=True)]
    ['nothing_helps']
    """
    if not fix or fix.startswith((IN_MODEL, BY_BUILDER)):
        return ()
    typed = actions(fix)
    if fix.startswith(NEVER_ONE_KERNEL):
        return (of_fix(Assertion.STAYS_APART),)
    if fix.startswith(_NOTHING):
        if any(isinstance(action, Setting) and action.key.startswith("place.") for action in typed):
            return (of_fix(Assertion.STAYS_FLOAT),)
        half = of_fix(Assertion.HALF_THEN)
        return (of_fix(Assertion.NOTHING_HELPS), *(half,) * any(map(_gives_half, typed)))
    first = typed[0] if typed else None
    if isinstance(first, Command) and first.name == _TRIES:
        return (of_fix(Assertion.IS_TRIED),)
    if isinstance(first, Command) and first.name in _LOOKS:
        return (of_fix(Assertion.ANSWERS),)
    if of_finding:
        return (IS_GONE_THEN,)
    if first is None:
        return ()
    if all(map(_gives_half, typed)):
        return (of_fix(Assertion.HALF_THEN),)
    return (of_fix(Assertion.STAYS_FLOAT),) if _takes_off(first) else (RUNS_THEN,)


def _gives_half(action: Action) -> bool:
    return action.name == "convert" if isinstance(action, Command) else action.key == "insert.types"


def _takes_off(action: Action) -> bool:
    return FLOATS in action.arguments if isinstance(action, Command) else action.key == "place.exclude"


def setting(key: str, value: str | Mapping[str, str] | Iterable[str]) -> str:
    r"""Return the option that gives `value` to a key of the recipe, quoted for a shell.

    >>> setting("place.skip_rules", ["gemv", "narrow"])
    "--set 'place.skip_rules=[gemv, narrow]'"
    >>> setting("place.first_layer", "int8")
    '--set place.first_layer=int8'
    >>> setting("place.formats", {"stem": "int8"})
    '--set \'place.formats={"stem": "int8"}\''
    """
    if isinstance(value, Mapping):
        value = json.dumps(dict(value), ensure_ascii=False)
    elif not isinstance(value, str):
        value = f"[{', '.join(dict.fromkeys(value))}]"
    return str(Setting(key, value))


def repairing(*, to_float: Iterable[str] = (), to_int8: Iterable[str] = (), samples: bool = False) -> str:
    """Return the command that makes nodes float or INT8 in a model that has Q/DQ. `with_files` adds the file names.

    >>> repairing(to_float=["/head/Gemm", "a b"])
    "`qdqtool repair --float /head/Gemm --float 'a b'`"
    >>> repairing(to_int8=["conv1"], samples=True)
    '`qdqtool repair --int8 conv1 --samples DATA`'
    """
    words = [word for name in dict.fromkeys(to_float) for word in (FLOATS, name)]
    words += [word for name in dict.fromkeys(to_int8) for word in (_INTEGERS, name)]
    return str(Command("repair", (*words, *("--samples", "DATA") * samples)))


PLACEHOLDERS = {
    "MODEL": "the ONNX model",
    "FLOAT_MODEL": "the ONNX model before it was quantized",
    "QUANTIZED": "the Q/DQ model",
    "DATA": "samples like those in use: a folder of pictures, or .npy or .npz files",
    "MORE_DATA": "samples that calibration has not used: a folder of pictures, or .npy or .npz files",
    "LAYERS": "what trtexec --exportLayerInfo wrote, or a build log with --dumpLayerInfo",
    "LOG": "the build log",
    "CACHE": "the calibration cache",
    "TABLE": "the calibration table",
    "BUILD": "the build folder",
    "FILE": "the file that the message is about",
    "FOLDER": "the folder",
    "LABELS": "the class index of each sample",
    "NODE": "the name of a node",
    "PRESET": "the name of a preparation of pictures, such as imagenet",
    "SCRIPT": "the program that builds the engine",
}
"""Words in commands that stand for something of the user, and what to put there."""


def explain_placeholders(text: str) -> str:
    """Return what each placeholder stands for in the commands of a text; "" if there is none.

    >>> explain_placeholders("`qdqtool run m.onnx --samples DATA` measures it")
    'DATA: samples like those in use: a folder of pictures, or .npy or .npz files'
    """
    words = [word for match in _COMMAND.finditer(text) for word in match["command"].split(" ")]
    return "; ".join(f"{word}: {PLACEHOLDERS[word]}" for word in dict.fromkeys(words) if word in PLACEHOLDERS)


def with_files(
    text: str, model: str = "", target: str = "", *, run: str = "", layers: str = "", float_model: str = ""
) -> str:
    """Return the text with the known files in its commands, so that a user can type them.

    Args:
        text: a fix or a note.
        model: the model, for MODEL and for `qdqtool repair` and `convert`, which get an output file too; "" if unknown.
        target: the target of `qdqtool repair`; "" for the default.
        run: the run folder, for `qdqtool fix`; "" if unknown.
        layers: the layer information, for LAYERS; "" if unknown.
        float_model: the model before it was quantized, for FLOAT_MODEL; "" if unknown.

    >>> with_files("remove the pair; `qdqtool repair` does", "my model.onnx")
    "remove the pair; `qdqtool repair 'my model.onnx' --out repaired.onnx` does"
    >>> with_files("`qdqtool fix` tries it; `qdqtool place MODEL` names the rules", "m.onnx", run="runs/m")
    '`qdqtool fix runs/m` tries it; `qdqtool place m.onnx` names the rules'
    >>> with_files("`qdqtool repair MODEL --out fixed.onnx` does", "m.onnx")
    '`qdqtool repair m.onnx --out fixed.onnx` does'
    """
    aimed = f" --target {target}" if target else ""
    files = {"MODEL": model, "LAYERS": layers, "FLOAT_MODEL": float_model}

    def fill(match: re.Match[str]) -> str:
        name, *words = match["command"].split(" ")
        if name in _OUTPUTS and model and "MODEL" not in words:
            words = [
                f"{shlex.quote(model)} --out {_OUTPUTS[name]}{aimed if name == 'repair' else ''}",
                *words,
            ]
        if name == _TRIES and run and not words:
            words = [shlex.quote(run)]
        written = {words[at + 1] for at, word in enumerate(words[:-1]) if word == "--out"}
        words = [
            shlex.quote(files[word]) if files.get(word) and word not in written else word for word in words
        ]
        return f"`{' '.join(('qdqtool', name, *words))}`"

    return _COMMAND.sub(fill, text)


def repair_commands(fix: str) -> tuple[str, ...]:
    """Return the commands of `qdqtool repair` in the text of a fix.

    >>> repair_commands("leave it float; `qdqtool repair --float mm` does")
    ('qdqtool repair --float mm',)
    """
    repairs = (
        action for action in actions(fix) if isinstance(action, Command) and action.name == REPAIR.name
    )
    return tuple(str(action).strip("`") for action in repairs)


def node_options(fixes: Iterable[str]) -> tuple[str, ...]:
    """Return the --float and --int8 options in the commands of these fixes, each once.

    If a node has both, only --float is returned.

    >>> node_options(["`qdqtool repair --int8 a --float b` does", "`qdqtool repair --float a` does"])
    (' --float b', ' --float a')
    """
    options = tuple(dict.fromkeys(option for fix in fixes for option in _NODES.findall(fix)))
    return tuple(
        option
        for option in options
        if option.startswith(f" {FLOATS} ") or option.replace(_INTEGERS, FLOATS, 1) not in options
    )


def nodes_in(fixes: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the nodes of the --float options in the commands of these fixes, and those of the --int8 options.

    >>> nodes_in(["`qdqtool repair --int8 a --float 'b c'` does"])
    (('b c',), ('a',))
    """
    words = shlex.split("".join(node_options(fixes)))
    pairs = tuple(zip(words[::2], words[1::2], strict=True))
    floats, integers = (
        tuple(name for word, name in pairs if word == option) for option in (FLOATS, _INTEGERS)
    )
    return floats, integers


def by_code(command: str, code: str) -> str:
    """Return a command with a finding's code instead of node names, for options that name more than three nodes.

    >>> by_code("`qdqtool repair --int8 a --int8 b --int8 c --int8 d --float e`", "QDQ144")
    '`qdqtool repair --int8 QDQ144 --float e`'
    """
    for option in (FLOATS, _INTEGERS):
        nodes = [words for words in _NODES.findall(command) if words.startswith(f" {option} ")]
        for node in nodes if len(nodes) > _MOST_NODES else ():
            command = re.sub(
                f"{re.escape(node)}(?=[ `]|$)",
                "" if node != nodes[0] else f" {option} {code}",
                command,
                count=1,
            )
    return command


def of_all(fixes: Iterable[str]) -> tuple[str, ...]:
    """Return the fixes, each once. Fixes that only differ in --float and --int8 nodes become one fix.

    >>> of_all(["`qdqtool repair --float a` does", "`qdqtool repair --float b` does", "calibrate again"])
    ('`qdqtool repair --float a --float b` does', 'calibrate again')
    """
    nodes: dict[str, list[str]] = {}
    for fix in dict.fromkeys(fixes):
        options = nodes.setdefault(_NODES.sub("", fix), [])
        options += _NODES.findall(fix)
    return tuple(
        _END.sub(lambda end, options=options: f"{end[1]}{''.join(dict.fromkeys(options))}`", text, count=1)  # type: ignore[misc]
        if options
        else text
        for text, options in nodes.items()
    )


def without_nodes(fix: str) -> str:
    """Return the fix without the --float and --int8 options of its commands.

    >>> without_nodes("`qdqtool repair --float a --samples DATA` does")
    '`qdqtool repair --samples DATA` does'
    """
    return _NODES.sub("", fix)


def settings_in(fix: str) -> tuple[str, ...]:
    """Return the settings in the text of a fix, in the form that `recipes.load` reads.

    >>> settings_in("--set 'place.skip_rules=[gemv]' quantizes it anyway; --set place.first_layer=int8")
    ('place.skip_rules=[gemv]', 'place.first_layer=int8')
    """
    return tuple(action.text for action in actions(fix) if isinstance(action, Setting))


def is_followed(fix: str) -> bool:
    """Return True if a user can follow a fix: it has a command or a setting, or says that there is nothing to do.

    >>> is_followed("--set place.first_layer=int8"), is_followed("nothing to do: it is small"), is_followed("retrain")
    (True, True, False)
    """
    return fix.startswith(_NOTHING) or _FOLLOWED.search(fix) is not None


def is_worth_trying(fix: str) -> bool:
    """Return True if a fix says what to do; False if it is empty or says that there is nothing to do.

    >>> is_worth_trying("--set place.first_layer=int8"), is_worth_trying("nothing to do: it is small"), is_worth_trying("")
    (True, False, False)
    """
    return fix != "" and not fix.startswith(_NOTHING)


def leaves_nothing(fix: str) -> bool:
    """Return True if a fix only says that there is nothing to do, without condition or alternative.

    >>> leaves_nothing("nothing to do: it is small"), leaves_nothing("nothing to do: it is small; --set place.sm=[89]")
    (True, False)
    >>> leaves_nothing("nothing to do where it is meant; else retrain"), leaves_nothing("")
    (False, False)
    """
    return _LEFT.match(fix) is not None and _FOLLOWED.search(fix) is None


def adjust_severity(severity: Severity, fix: str) -> Severity:
    """Return a finding's severity; a warning becomes info if its fix says that there is nothing to do.

    A warning without a usable fix would hide the warnings with one. An error stays an error: a model that cannot be
    built must change, and a fix that says otherwise is wrong.
    """
    return Severity.INFO if severity is Severity.WARNING and leaves_nothing(fix) else severity


def format_fix(fix: str, *, command: str = "", at: str = "") -> str:
    """Return a fix in a form that a user can follow as printed.

    If no command can do it, the fix is an edit of the model by its author; the text then says so.

    Args:
        fix: fix of a rule or a check.
        command: command to type if the fix contains none.
        at: the node to edit, if the text does not name it.

    >>> format_fix("store the scale as a scalar, shape []", at="conv1/Q")
    "nothing to do by a command; in the model, at 'conv1/Q': store the scale as a scalar, shape []"
    >>> format_fix("store the scale as a scalar, shape []", command="`qdqtool repair --float fc` removes the pair")
    '`qdqtool repair --float fc` removes the pair; or store the scale as a scalar, shape []'
    >>> format_fix("remove the pair; `qdqtool repair` does", command="`qdqtool repair --float fc`")
    'remove the pair; `qdqtool repair` does'
    """
    if not fix or is_followed(fix):
        return fix
    if command:
        return f"{command}; or {fix}"
    place = f", at {at!r}" if at and at not in fix else ""
    return f"{IN_MODEL}{place}: {fix}"


def as_float(nodes: Iterable[str], *, placed: bool) -> str:
    """Return the advice that keeps nodes float: a setting if this tool placed the Q/DQ, else a command.

    >>> as_float(["/head/Gemm"], placed=True)
    "--set 'place.exclude=[/head/Gemm]' leaves it float"
    >>> as_float(["/head/Gemm", "fc"], placed=False)
    '`qdqtool repair --float /head/Gemm --float fc` leaves them float'
    """
    names = tuple(dict.fromkeys(nodes))
    typed = excluding(names) if placed else repairing(to_float=names)
    return f"{typed} leaves {'it' if len(names) == 1 else 'them'} float"


def excluding(nodes: Iterable[str], excluded: Iterable[str] = ()) -> str:
    r"""Return the setting that keeps only these nodes float, and those that match the patterns `excluded`.

    >>> excluding(["/head/Gemm", "a[1]"])
    '--set \'place.exclude=[/head/Gemm, "a[[]1]"]\''
    """
    return adding("place.exclude", excluded, nodes)


def adding(key: str, patterns: Iterable[str], nodes: Iterable[str]) -> str:
    """Return the setting that adds nodes to a list of patterns in the recipe."""
    return setting(key, (*map(_quoted, patterns), *map(as_glob, nodes)))


def as_glob(name: str) -> str:
    """Return a glob pattern that matches only this name, quoted if a list in a recipe needs it."""
    return _quoted(escape(name))


def _quoted(value: object) -> str:
    """Return a value as a list in a recipe has it; text gets quotes if it needs them."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


@lru_cache(maxsize=1024)
def _list_items(text: str) -> tuple[str, ...] | None:
    """Return the items of a YAML list, each as a list in a recipe has it; None for anything but a list of plain values."""
    from qdqtool.io.yaml_files import parse_yaml

    try:
        value, _ = parse_yaml(text, "--set", most=_MOST_NAMES, aliases=False)
    except InputFileError:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str | int | float) for item in value):
        return None
    return tuple(map(_quoted, value))


def join_fixes(fixes: Iterable[str]) -> str:
    """Join the fixes into one text, each once. Settings of one list become one setting, because only the last would count.

    >>> join_fixes(["--set 'place.skip_rules=[a]' quantizes it", "--set 'place.skip_rules=[b]' quantizes it"])
    "--set 'place.skip_rules=[a, b]' quantizes it"
    """
    lists: dict[str, list[str]] = {}
    rests: dict[str, list[str]] = {}
    texts: list[str] = []
    for fix in dict.fromkeys(fixes):
        match = _LIST_SETTING.fullmatch(fix)
        option = Setting.of(shlex.split(match["word"])[0]) if match else None
        items = _list_items(option.value) if option else None
        if match is None or option is None or items is None:
            texts.append(fix)
            continue
        key = option.key
        if key not in lists:
            texts.append(key)
        lists[key] = [*lists.get(key, []), *items]
        rests[key] = [*rests.get(key, []), match["rest"]]
    return "; ".join(
        setting(text, lists[text]) + " and".join(dict.fromkeys(rests[text])) if text in lists else text
        for text in texts
    )
