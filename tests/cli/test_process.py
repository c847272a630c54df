"""What surrounds a command: signals, full disks, encodings, passwords, and the report of a bug."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest

from qdqtool.cli import app
from qdqtool.errors import InputFileError, UsageError, of_machine, of_system
from qdqtool.redact import redact_text, without_password
from tests import models

DIGITS = Path(__file__).parents[2] / "recipes" / "examples" / "digits" / "digits.onnx"
PASSWORD = "S3/c@r:t"
ADDRESS = f"postgresql://bob:{PASSWORD}@127.0.0.1:1/db"
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX signals and devices")


def command(*words: str, **settings: object) -> subprocess.CompletedProcess[bytes]:
    options: dict[str, object] = {"capture_output": True, **settings}
    return subprocess.run([sys.executable, "-m", "qdqtool", *words], check=False, **options)  # type: ignore[call-overload,no-any-return]


def hear_signals() -> None:
    """Whatever started the tests: a shell's background job and `nohup` hand on signals that are ignored."""
    for name in ("SIGINT", "SIGHUP", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def run_program(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_signals,  # noqa: PLW1509 -- no threads run in the tests of this file
    )


SLOW = """
import sys, tempfile, types, time
sys.argv = ["qdqtool"]
slow = types.ModuleType("qdqtool.cli.app")
sys.modules["qdqtool.cli.app"] = slow
from pathlib import Path
from qdqtool.io.files import drafting
def run(arguments):
    with drafting(Path({folder!r})) as drafts:
        (drafts / "engine.plan").write_text("half")
        tempfile.mkdtemp()  # like a folder whose own removal the signal interrupts
        print("at work", flush=True)
        time.sleep(60)
slow.run = run
from qdqtool.cli import main
main()
"""


@posix
@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        (signal.SIGTERM, 143, "stopped by SIGTERM"),
        (signal.SIGINT, 130, "stopped by Ctrl-C"),
        (getattr(signal, "SIGHUP", signal.SIGTERM), 129, "the terminal was closed (SIGHUP)"),
    ],
    ids=["SIGTERM", "SIGINT", "SIGHUP"],
)
def test_a_signal_ends_the_work_cleaned_up_and_says_that_the_same_command_resumes(
    number: int, code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = run_program(SLOW.format(folder=str(tmp_path / "build")))
    assert process.stdout is not None
    assert process.stdout.readline() == "at work\n"
    process.send_signal(number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == code
    assert says in error
    assert "run the same command again" in error
    assert list((tmp_path / "build").iterdir()) == []
    assert list(temporary.iterdir()) == []


DURING_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                import time; time.sleep(5)
            except KeyboardInterrupt:
                raise ImportError("initialization failed") from None
sys.meta_path.insert(0, Finder())
sys.argv = ["qdqtool", "explain", "QDQ120"]
from qdqtool.cli import main
main()
"""


def test_signals_are_answered_before_anything_large_is_imported() -> None:
    """What comes earlier is the interpreter's: its own start, `typing` and `re`."""
    code = "import sys; import qdqtool.cli; print(*{'socket', 'subprocess', 'ctypes', 'typer'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@posix
def test_ctrl_c_that_a_library_turned_into_an_import_error_is_still_ctrl_c() -> None:
    process = run_program(DURING_IMPORT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped by Ctrl-C" in error


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_under_standard_output_is_no_bug() -> None:
    with Path("/dev/full").open("wb") as full:
        done = command("explain", "QDQ120", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 5
    assert b"no space is left" in done.stderr
    assert b"mistake in qdqtool" not in done.stderr


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
def test_standard_output_of_any_encoding_takes_every_character(encoding: str, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = command("recipe", "check", "\u00e9\u4e16\U0001f600.yaml", env=env, cwd=tmp_path)
    assert done.returncode == 2
    assert b"\\u4e16" in done.stderr
    assert not list(tmp_path.iterdir())


def test_json_for_a_narrow_encoding_stays_json() -> None:
    import json

    code = "from qdqtool.cli import process; import sys; process.write_any_text(); sys.stdout.write('\"\\u4e16\\U0001f600\"')"
    env = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=env)
    assert json.loads(done.stdout) == "\u4e16\U0001f600"


def test_the_system_is_named_where_it_is_at_fault() -> None:
    for name in ("ENOSPC", "EROFS", "EMFILE", "EIO", "EACCES"):
        found = of_system(OSError(getattr(errno, name), "x", "file"))
        assert isinstance(found, InputFileError)
        assert found.where == "file"
    assert of_system(ValueError("x") if False else OSError("no number")) is None


def encode_error() -> Exception:
    from google.protobuf.message import EncodeError

    return EncodeError("Failed to serialize proto")


def too_large() -> Exception:
    with pytest.raises(MemoryError) as raised:
        np.empty(1 << 60, np.uint8)
    return raised.value


def caused(error: Exception) -> Exception:
    found = RuntimeError("something that a library makes of it")
    found.__cause__ = error
    return found


MACHINES = {
    "no memory": MemoryError(),
    "numpy": too_large(),
    "protobuf": encode_error(),
    "onnxruntime": RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc"),
    "no thread": RuntimeError("can't start new thread"),
    "system": OSError(errno.ENOMEM, "Cannot allocate memory"),
    "killed child": BrokenProcessPool("A process in the process pool was terminated abruptly"),
    "reset": ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    "cause": caused(MemoryError()),
    "cause of a cause": caused(caused(BrokenProcessPool("gone"))),
}


@pytest.mark.parametrize("name", MACHINES)
def test_what_the_machine_does_is_no_mistake_of_qdqtool(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_arguments: list[str]) -> int:
        raise MACHINES[name]

    monkeypatch.setattr(app, "_run", fail)
    monkeypatch.chdir(tmp_path)
    assert app.run(["convert"]) == 5
    said = capsys.readouterr().err
    assert "fix: " in said
    assert "mistake in qdqtool" not in said
    assert not list(tmp_path.iterdir()), "no report of a bug"


@pytest.mark.parametrize("error", [RuntimeError("x"), ValueError("memory"), EOFError(), KeyError("k")])
def test_a_mistake_of_ours_is_not_put_on_the_machine(error: Exception) -> None:
    assert of_machine(error) is None


BROKEN = """
import sys
from qdqtool.cli import app
def fail(_arguments):
    raise BrokenPipeError(32, "Broken pipe")
app._run = fail
raise SystemExit(app.run([]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell whether a pipe is read")
def test_a_broken_pipe_to_a_child_is_no_success() -> None:
    """Only where nobody reads our answer: any broken pipe ended with exit code 0 and no word."""
    words = [sys.executable, "-c", BROKEN]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert "a worker process ended" in done.stderr
    reader, writer = os.pipe()
    os.close(reader)
    assert subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, check=False).returncode == 0
    os.close(writer)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space of a process")
@pytest.mark.parametrize("limit", [600, 800, 1000, 1400, 2000])
def test_convert_under_a_limit_of_memory_ends_well_or_with_a_documented_code(
    limit: int, tmp_path: Path
) -> None:
    """`ulimit -v` in MiB: of 256 MiB of weights in the file of the model."""
    sketch = models.Sketch()
    sketch.output(
        sketch.node("MatMul", [sketch.input("x", ["N", 8192]), sketch.weight("w", 8192, 8192)], "y"), None
    )
    path = models.save(sketch.model(), tmp_path)
    words = f"ulimit -v {limit << 10}; exec {sys.executable} -m qdqtool convert {path} --types fp16 -o {tmp_path}/h.onnx"
    env = {**os.environ, "PYTHONPATH": str(DIGITS.parents[3]), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", words], capture_output=True, text=True, check=False, env=env, cwd=tmp_path
    )
    assert done.returncode in {0, 5}, done.stderr
    assert (tmp_path / "h.onnx").exists() == (done.returncode == 0)
    if done.returncode:
        assert "fix: " in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        f"cannot reach {ADDRESS} now",
        f"['--storage', '{ADDRESS}']",
        f"host=db password={PASSWORD} user=bob",
        f"postgresql://host/db?user=bob&password={PASSWORD.replace('@', '%40')}",
    ],
    ids=["address", "list of arguments", "connection string", "query"],
)
def test_a_password_is_hidden_and_everything_else_stays(text: str) -> None:
    shown = redact_text(text)
    assert PASSWORD not in shown
    assert "S3" not in shown
    assert "bob" in shown


@pytest.mark.parametrize("text", ["", "a:b@c", "x = 3", "https://docs.nvidia.com/a@b", "tensor:0"])
def test_what_holds_no_password_is_left_alone(text: str) -> None:
    assert redact_text(text) == text


def test_an_exception_does_not_carry_a_password() -> None:
    error = UsageError(f"no {ADDRESS}", fix=f"use {ADDRESS}", where=ADDRESS)
    assert "S3" not in "".join(
        [str(error), repr(error), *error.args, error.what, error.fix, str(error.where)]
    )


def test_the_report_of_a_bug_hides_passwords_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise RuntimeError(f"cannot use {ADDRESS}")

    monkeypatch.setattr(app, "application", lambda: lambda *_, **__: broken())
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f"qdqtool-bug-{os.getpid()}.txt").symlink_to(victim)
    assert app.run(["sweep", "--storage", ADDRESS]) == 70
    written = [path for path in tmp_path.glob("qdqtool-bug-*.txt") if not path.is_symlink()]
    assert len(written) == 1
    text = written[0].read_text("utf-8")
    assert "RuntimeError" in text
    assert "S3" not in text
    assert victim.read_text() == "mine"
    if os.name == "posix":
        assert written[0].stat().st_mode & 0o777 == 0o600
    shown = capsys.readouterr()
    assert "S3" not in shown.out + shown.err
    assert written[0].name in shown.err


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux shows arguments to everybody")
def test_the_process_list_shows_no_password() -> None:
    code = (
        "import sys, time\nfrom qdqtool.cli.process import hide_arguments\nhide_arguments()\n"
        "print('hidden', flush=True)\ntime.sleep(30)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, ADDRESS], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "hidden\n"
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert b"S3" not in shown
        assert b"postgresql://bob:***@127.0.0.1:1/db" in shown
    finally:
        process.kill()
        process.communicate()


def test_a_log_record_and_its_traceback_show_no_password() -> None:
    code = (
        "import logging\nfrom qdqtool.cli.options import log_to_stderr\nlog_to_stderr(verbose=False)\n"
        f"try: raise ValueError({ADDRESS!r})\n"
        f"except ValueError: logging.getLogger('x').exception('lost %s', {ADDRESS!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "lost" in done.stderr
    assert "Traceback" in done.stderr
    assert "S3" not in done.stderr


def test_verbose_may_stand_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["explain", "QDQ120", "-v"]) == 0
    assert app.run(["-v", "explain", "QDQ120"]) == 0
    assert app.run(["recipe", "check", "conv-int8", "--verbose"]) == 0
    capsys.readouterr()


def test_a_command_that_was_not_found_is_an_error_of_usage() -> None:
    began = time.monotonic()
    assert command("nosuch").returncode == 2
    assert time.monotonic() - began < 30


@posix
def test_a_run_folder_that_became_read_only_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import errno

    from filelock import FileLock

    def refuse(self: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path / ".lock"))

    monkeypatch.setattr(FileLock, "_acquire", refuse)
    words = ["run", str(DIGITS), "--samples", "random:1", "--out", str(tmp_path)]
    assert app.run(words) == 5
    assert "read-only" in capsys.readouterr().err.lower()


@pytest.mark.skipif(os.name != "posix", reason="shells of Windows do not close streams")
@pytest.mark.parametrize(
    ("closing", "heard"), [(">&-", "err"), ("2>&-", "out"), ("<&-", "out"), (">&- 2>&-", "")]
)
@pytest.mark.parametrize(
    "command", ["--version", "recipe check {recipe}", "lint {model}", "lint missing.onnx"]
)
def test_streams_that_the_caller_closed_go_nowhere_and_into_no_file(
    command: str, closing: str, heard: str, tmp_path: Path
) -> None:
    model = models.save(models.conv_chain(), tmp_path)
    recipe = Path(__file__).parents[2] / "recipes" / "conv-int8.yaml"
    before = model.read_bytes()
    words = command.format(model=model, recipe=recipe)
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m qdqtool {words} {closing}"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == (5 if "missing" in command else 0), (done.stdout, done.stderr)
    assert b"Error" not in done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [model.name]
    assert model.read_bytes() == before
    if heard == "out" and "missing" not in command:
        assert done.stdout


@pytest.mark.parametrize(
    ("address", "said", "shown"),
    [
        (
            "postgresql://bob:p@S3CRET@127.0.0.1/db",
            "cannot resolve 'S3CRET@127.0.0.1'",
            "cannot resolve '***@127.0.0.1'",
        ),
        ("postgresql://bob:a:S3CRET@h/db", "bad port 'S3CRET'", "bad port '***'"),
        ("postgresql://bob@h/db", "no password for bob", "no password for bob"),
        ("sqlite:///study.db", "disk is full", "disk is full"),
    ],
)
def test_what_drivers_make_of_an_address_shows_no_piece_of_its_password(
    address: str, said: str, shown: str
) -> None:
    assert without_password(said, address) == shown


def test_commands_of_one_process_share_one_command_line() -> None:
    """Putting it together takes 0.1 s: four fifths of what a small command takes."""
    assert app.application() is app.application()
