"""Puts the commands of the shelf on one command line and turns errors into exit codes."""

from __future__ import annotations

import logging
import os
import platform
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from qdqtool._version import __version__
from qdqtool.cli.bare_cluster import BareCluster
from qdqtool.cli.screen import readable, stderr
from qdqtool.errors import Bug, Interrupted, QdqError
from qdqtool.plugins import Registry

COMMANDS = Registry(package="qdqtool.cli.commands")


def main() -> NoReturn:
    """Run the command line and exit with the documented code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line with these arguments and return the exit code."""
    try:
        code = application()(arguments, standalone_mode=False)
    except QdqError as error:
        show(error)
        return error.exit_code
    except typer.Abort:
        return _interrupted()
    except KeyboardInterrupt:
        return _interrupted()
    except typer.TyperException as error:
        wrong_usage: Any = error  # each one that the parser raises can show itself; the stated base cannot
        wrong_usage.show()
        return 2
    except BrokenPipeError:
        # The reader of our answer went away: nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 -- the last door: a bug becomes a report, not a traceback
        return _bug(error, arguments)
    return code if isinstance(code, int) else 0


def application() -> typer.main.Typer | Any:
    """The command made of every file on the shelf of commands."""
    app = typer.Typer(
        name="qdqtool",
        help="INT8 for NVIDIA TensorRT by explicit Q/DQ: place, calibrate, insert, build, audit, compare, report.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name in COMMANDS.names():
        plugin = COMMANDS.load(name)
        if isinstance(plugin, typer.Typer):
            app.add_typer(plugin, name=name)
        else:
            app.command(name=name, cls=BareCluster)(plugin)
    return typer.main.get_command(app)


def show(error: QdqError) -> None:
    """Print what is wrong, where, and how to mend it, on standard error."""
    console = stderr()
    place = f"{error.where}: " if error.where else ""
    console.print(readable(f"error: {place}{error.what}"), style="bold red", markup=False, highlight=False)
    console.print(readable(f"  fix: {error.fix}"), markup=False, highlight=False)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"qdqtool {__version__}\n")
        raise typer.Exit


def _options(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more on standard error.")] = False,
    version: Annotated[  # noqa: ARG001 -- its callback does the work
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """INT8 for NVIDIA TensorRT by explicit Q/DQ: place, calibrate, insert, build, audit, compare, report."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def _interrupted() -> int:
    show(Interrupted("stopped by Ctrl-C", fix="run the same command again to go on; finished steps are kept"))
    return Interrupted.exit_code


def _bug(error: Exception, arguments: list[str]) -> int:
    """Write a report that can be attached to an issue, and say where it is."""
    text = "".join(traceback.format_exception(error))
    path = Path(f"qdqtool-bug-{os.getpid()}.txt")
    versions = f"qdqtool {__version__}, Python {platform.python_version()}, {platform.platform()}"
    try:
        path.write_text(f"{versions}\narguments: {arguments}\n\n{text}", "utf-8")
        where = str(path)
    except OSError:
        sys.stderr.write(text)
        where = "the lines above"
    show(
        Bug(
            f"{type(error).__name__}: {error}",
            fix=f"this is a mistake in qdqtool; please report it with {where}",
        )
    )
    return Bug.exit_code
