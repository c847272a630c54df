"""Builds the command line from the files of the package `commands`, and turns errors into exit codes."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import traceback
from collections.abc import Collection, Sequence
from contextlib import suppress
from contextvars import copy_context
from copy import copy
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from qdqtool._version import __version__
from qdqtool.cli import process, signs
from qdqtool.cli.file_kinds import advise_other_command
from qdqtool.cli.options import examples, log_to_stderr, with_common
from qdqtool.cli.screen import readable, stderr
from qdqtool.errors import Bug, Interrupted, QdqError, UsageError, of_machine
from qdqtool.plugins import Registry
from qdqtool.redact import redact_text

# --- the program -----------------------------------------------------------------------------------------------------

COMMANDS = Registry(package="qdqtool.cli.commands")


def run(arguments: list[str]) -> int:
    """Run the command line with these arguments and return the exit code."""
    try:
        code = copy_context().run(_run, arguments)  # the settings of options end with the command
        sys.stdout.flush()  # we report a full disk, instead of the interpreter when it exits
    except BrokenPipeError as error:
        gone = isinstance(error, process.AnswerUnread) or process.is_unread()
        _close_stdout()
        # If the reader of our output is gone, there is nothing to report; otherwise a child process ended.
        return 0 if gone else _show_failure(of_machine(error), error, arguments)
    except OSError as error:
        _close_stdout()
        return _show_failure(of_machine(error), error, arguments)
    except Exception as error:  # noqa: BLE001 -- the outermost handler: a bug becomes a report, not a traceback
        return _show_failure(of_machine(error), error, arguments)
    return code


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit code. Expected errors are shown; unexpected ones are raised."""
    try:
        with signs.of_life(next((word for word in arguments if not word.startswith("-")), "qdqtool")):
            code = application()(_current(arguments), standalone_mode=False)
    except QdqError as error:
        return _show_error(process.find_stop_signal() or advise_other_command(error, arguments))
    except (typer.Abort, KeyboardInterrupt):
        return _show_error(process.find_stop_signal() or process.report_interruption())
    except typer.TyperException as error:
        wrong_usage: Any = (
            error  # every error that the parser raises has show(); its declared base class does not
        )
        wrong_usage.show()
        return 2
    except SystemExit:  # typer raises this if the reader of our output is gone
        raise process.AnswerUnread from None
    if code == Interrupted.exit_code:  # typer raises this after a KeyboardInterrupt
        return _show_error(process.find_stop_signal() or process.report_interruption())
    return code if isinstance(code, int) else 0


def _current(arguments: list[str]) -> list[str]:
    """Return the arguments with `audit --fix`, an older spelling, replaced by the command `fix`."""
    commands = [place for place, word in enumerate(arguments) if not word.startswith("-")]
    if not commands or arguments[commands[0]] != "audit" or "--fix" not in arguments:
        return arguments
    stderr().print("note: `audit --fix` is now the command `fix`")
    words = [word for word in arguments if word != "--fix"]
    words[commands[0]] = "fix"
    return words


def _show_failure(failure: QdqError | None, error: Exception, arguments: list[str]) -> int:
    """Show why the command failed (a signal, an error of the system, or a bug), and return the exit code."""
    shown = process.find_stop_signal() or failure
    return _show_error(shown) if shown is not None else _bug(error, arguments)


def _show_error(error: QdqError) -> int:
    show(error)
    return error.exit_code


def _close_stdout() -> None:
    """Discard buffered standard output, because flushing it at exit would fail."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def application() -> typer.main.Typer | Any:
    """Return the command line with one command per file of the package `commands`."""
    return _assemble_app(tuple((name, COMMANDS.load(name)) for name in COMMANDS.usable()))


@lru_cache(maxsize=2)
def _assemble_app(plugins: tuple[tuple[str, Any], ...]) -> typer.main.Typer | Any:
    """Build the command line from these command plug-ins; cached for processes that run many commands."""
    app = typer.Typer(
        name="qdqtool",
        help="Quantize ONNX models for NVIDIA TensorRT with explicit Q/DQ (INT8, FP8, INT4, NVFP4), and check what the engine runs.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, plugin in plugins:
        if isinstance(plugin, typer.Typer):
            epilog = examples(COMMANDS.manual(name))
            app.add_typer(_of_group(plugin, name), name=name, cls=QdqGroup, epilog=epilog)
        else:
            epilog = examples(COMMANDS.manual(name))
            app.command(name=name, cls=QdqCommand, epilog=epilog)(with_common(plugin))
    return typer.main.get_command(app)


def _of_group(group: typer.Typer, name: str) -> typer.Typer:
    """Return a copy of a command group whose commands have the common options and their own examples."""
    ours = copy(group)
    ours.registered_commands = [copy(command) for command in group.registered_commands]
    for command in ours.registered_commands:
        assert command.callback is not None
        own = command.name or command.callback.__name__.replace("_", "-")
        command.epilog = examples(COMMANDS.manual(name), f"{name} {own}")
        # without a given name, typer names a command after its function; the wrapper keeps this name
        command.callback = with_common(command.callback)
        command.cls = QdqCommand
    return ours


def show(error: QdqError) -> None:
    """Print the error, its place and the fix on standard error."""
    from qdqtool.core.advice import explain_placeholders, with_files

    console = stderr()
    place = f"{error.where}: " if error.where else ""
    fix = with_files(error.fix, error.where if error.where and error.where.endswith(".onnx") else "")
    placeholders = explain_placeholders(fix)
    console.print(readable(f"error: {place}{error.what}"), style="bold red")
    console.print(readable(f"  fix: {fix}{f' ({placeholders})' if placeholders else ''}"))


def _version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"qdqtool {__version__}\n")
        raise typer.Exit


def _options(
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print more messages to standard error.")
    ] = False,
    version: Annotated[  # noqa: ARG001 -- its callback does the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Quantize ONNX models for NVIDIA TensorRT with explicit Q/DQ (INT8, FP8, INT4, NVFP4), and check what the engine runs."""
    log_to_stderr(verbose=verbose)


def _bug(error: Exception, arguments: list[str]) -> int:
    """Write a bug report that can be attached to an issue, and print its path."""
    trace = "".join(traceback.format_exception(error))
    versions = f"qdqtool {__version__}, Python {platform.python_version()}, {platform.platform()}"
    text = redact_text(f"{versions}\narguments: {arguments}\n\n{trace}")
    try:
        # a new file with a random name and mode 0600, so that links in a shared folder are not followed
        handle, where = tempfile.mkstemp(prefix="qdqtool-bug-", suffix=".txt", dir=".")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
    except OSError:
        sys.stderr.write(text)
        where = "the lines above"
    bug = Bug(
        f"{type(error).__name__}: {error}",
        fix=f"this is a mistake in qdqtool; please report it with {Path(where).name}",
    )
    return _show_error(bug)


# --- words of a command ----------------------------------------------------------------------------------------------
# Reads the words of a command that the parser would misread.


class _Whole:
    """Mixin for help: the list of commands shows the whole first paragraph of each command."""

    help: str | None

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first paragraph of the help; `limit`, the length at which the parser would cut it, is ignored."""
        del limit
        return " ".join((self.help or "").partition("\n\n")[0].split())


class QdqGroup(_Whole, TyperGroup):
    """A group of qdqtool commands with the common options."""


class QdqCommand(_Whole, TyperCommand):
    """A command that accepts `--cluster` without an address and refuses empty paths."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments and return the words that the parser did not consume.

        Raises:
            UsageError: a path is empty, or an output is an input.
        """
        typed = tuple(args)  # the parser removes words
        left = super().parse_args(ctx, spell_out(args))
        inputs = {param.name for param in self.params if param.param_type_name == "argument"}
        _refuse_empty_paths(typed, ctx.params, inputs)
        _refuse_overwriting(ctx.params)
        return left


def _refuse_empty_paths(words: Sequence[str], values: dict[str, Any], inputs: Collection[str | None]) -> None:
    """Refuse empty paths. They would mean the current folder: `--out "$UNSET"` in a script would write there.

    Inputs may be more than paths (- for standard input, a function in a file), and so plain words.
    """
    if "" not in words and not any(word.endswith("=") for word in words):
        return
    here = [word for word in words if word.rpartition("=")[2] in {".", "./"}]
    for name, value in values.items():
        paths = value if isinstance(value, list | tuple) else [value]
        empty = any(isinstance(path, Path) and path == Path() for path in paths) and not here
        if empty or (name in inputs and "" in paths):
            raise UsageError(
                "the path is empty",
                fix="name a file or a folder; . is the current one",
                where=name.replace("_", "-"),
            )


_OUTPUTS = frozenset({"out", "page", "junit", "sarif", "float_model", "chart"})
"""Parameters that name files to write."""
_IN_PLACE = frozenset({"file", "files"})
"""Parameters that name caches, which may be replaced by their new form."""


def _refuse_overwriting(values: dict[str, Any]) -> None:
    """Refuse an output that is an input, before long work: after it, the user's model or samples would be gone."""
    read = [
        path
        for name, value in values.items()
        for path in (value if isinstance(value, list | tuple) else [value])
        if name not in _OUTPUTS | _IN_PLACE and isinstance(path, str | Path) and os.path.isfile(path)  # noqa: PTH113
    ]
    for out in filter(None, map(values.get, _OUTPUTS)):
        if os.path.isfile(out) and any(os.path.samefile(out, path) for path in read):  # noqa: PTH113, PTH121
            fix = "choose another output path"
            raise UsageError("the output would overwrite an input", fix=fix, where=str(out))


# --- --cluster without an address ------------------------------------------------------------------------------------
# `--cluster` without an address: the parser knows only options that always take a word.

_CLUSTER = "--cluster"
_ADDRESS = re.compile(r"local|[a-z][a-z0-9+.-]*://\S*|[^\s/\\]+:\d+")


def spell_out(words: Sequence[str]) -> list[str]:
    """Return the arguments with "local" added after each `--cluster` that has no address.

    An address is `local`, `scheme://...` or `host:port`; other words are other arguments.
    """
    result: list[str] = []
    for number, word in enumerate(words):
        result.append(word)
        following = words[number + 1] if number + 1 < len(words) else "-"
        if word == _CLUSTER and "--" not in words[:number] and not _ADDRESS.fullmatch(following):
            result.append("local")
    return result
