"""Trials timed over ssh: a real server on this machine, a stand-in for trtexec, and what goes wrong on the way."""

from __future__ import annotations

import getpass
import json
import os
import shlex
import shutil
import socket
import subprocess
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import onnx
import pytest

from qdqtool.cli.app import run as cli
from qdqtool.core.kinds import FIXES
from qdqtool.errors import BuildError, InputFileError, MissingPackage, UsageError
from qdqtool.pipeline.sweep import elsewhere
from qdqtool.pipeline.sweep.elsewhere import (
    SCRIPT,
    Host,
    MeasuredTimes,
    check_host,
    digest_models,
    host_of,
    plan,
    read_times,
    time_on,
)
from tests import models
from tests.audit.graphs import GRAPHS
from tests.backends import graphs
from tests.backends.stand_in_trtexec import install
from tests.models import save
from tests.sweep.digits import result, words

SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin:/sbin")
NAMES = ("float", "0000", "0001")
needs_sshd = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="needs an ssh server: apt-get install openssh-server"
)


@dataclass
class Server:
    """An ssh server on this machine, whose commands run in a folder of their own."""

    port: int
    folder: Path
    home: Path

    @property
    def word(self) -> str:
        return f"ssh://{getpass.getuser()}@127.0.0.1:{self.port}"

    def key(self, name: str) -> str:
        path = self.folder / name
        if not path.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
        return path.with_suffix(".pub").read_text()

    def client(self, monkeypatch: pytest.MonkeyPatch, *, identity: str = "mine", host: str = "host") -> None:
        """Make `ssh` use this key, and expect this key of the server; "" knows none."""
        self.key(identity)
        known = f"[127.0.0.1]:{self.port} {' '.join(self.key(host).split()[:2])}\n" if host else ""
        (self.folder / "known").write_text(known)
        config = self.folder / "config"
        config.write_text(
            f"Host *\n IdentityFile {self.folder / identity}\n IdentitiesOnly yes\n IdentityAgent none\n"
            f" UserKnownHostsFile {self.folder / 'known'}\n GlobalKnownHostsFile /dev/null\n"
        )
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        wrapper = programs / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh", path="/usr/bin:/bin")} -F {config} "$@"\n')
        wrapper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("sshd")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = Server(port, folder, folder / "home")
    here.home.mkdir()
    here.key("host")
    (folder / "authorized").write_text(here.key("mine"))
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile {folder / 'pid'}\n"
        f"AuthorizedKeysFile {folder / 'authorized'}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        f'KbdInteractiveAuthentication no\nForceCommand cd {here.home} && sh -c "$SSH_ORIGINAL_COMMAND"\n'
    )
    Path("/run/sshd").mkdir(exist_ok=True, parents=True)
    assert SSHD is not None
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield here
    process.terminate()
    process.wait(10)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder as `export` leaves it; the stand-in does not read the models."""
    folder = tmp_path / "out"
    folder.mkdir()
    models = [
        {"name": name, "file": f"{name}.onnx", "shapes": "", "weakly": [], "flags": []} for name in NAMES
    ]
    (folder / "manifest.json").write_text(json.dumps({"digest": "d", "models": models}))
    for name in NAMES:
        (folder / f"{name}.onnx").write_bytes(name.encode())
    from qdqtool.pipeline.sweep import elsewhere

    shutil.copy(Path(elsewhere.__file__).with_name(SCRIPT), folder / SCRIPT)
    return folder


@pytest.mark.parametrize(
    ("word", "host"),
    [
        ("local", Host(word="local")),
        ("ssh://orin", Host(word="ssh://orin", target="orin")),
        ("ssh://me@10.0.0.2:2222/", Host(word="ssh://me@10.0.0.2:2222/", target="me@10.0.0.2", port=2222)),
    ],
)
def test_a_word_names_a_host(word: str, host: Host) -> None:
    assert host_of(word) == host


@pytest.mark.parametrize(
    "word", ["orin", "ssh://", "ssh://-oProxyCommand=touch", "ssh://a@-x", "ssh://a b", "ssh://a;b", ""]
)
def test_a_word_that_is_no_host_or_an_option_of_ssh_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="cannot read the host"):
        host_of(word)


def test_the_plan_says_what_is_sent_and_run(tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    lines = plan(["ssh://me@orin:2222"], folder, 4, "/opt/trtexec")
    assert shlex.split(lines[1])[:3] == ["tar", "-C", str(folder)]
    assert "4 trials" in lines[0]
    assert "-p 2222" in lines[1]
    assert "me@orin" in lines[2]
    assert "/opt/trtexec" in lines[2]
    assert shlex.split(lines[3])[-1] == str(folder / "times.json")


def test_models_are_timed_on_this_machine(exported: Path, tmp_path: Path) -> None:
    trtexec = install(tmp_path, 101600)
    times = json.loads(time_on(host_of("local"), exported, str(trtexec)).read_text())
    assert sorted(times["rounds"]) == sorted(NAMES)
    assert not (exported / "progress.json").exists()


@needs_sshd
def test_models_are_timed_over_ssh_and_sent_once(
    server: Server, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client(monkeypatch)
    trtexec = str(install(tmp_path, 101600))
    check_host(host_of(server.word), trtexec)
    found = time_on(host_of(server.word), exported, trtexec)
    assert found == exported / "times.json"
    assert sorted(json.loads(found.read_text())["rounds"]) == sorted(NAMES)
    (there,) = (server.home / ".cache/qdqtool").iterdir()
    assert {path.name for path in exported.iterdir()} - {"times.json"} <= {
        path.name for path in there.iterdir()
    }
    sent = (there / "0000.onnx").stat().st_mtime_ns
    time_on(host_of(server.word), exported, trtexec)
    assert (there / "0000.onnx").stat().st_mtime_ns == sent
    shutil.rmtree(server.home / ".cache")


@needs_sshd
def test_a_script_that_was_killed_there_goes_on_without_building_again(
    server: Server, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client(monkeypatch)
    trtexec = install(tmp_path, 101600)
    log, killer = tmp_path / "calls", tmp_path / "trtexec-once"
    killer.write_text(
        f'#!/bin/sh\necho "$*" >> {log}\n'
        f'if [ "$(grep -c loadEngine {log})" = 5 ] && [ ! -e {log}.killed ]; then touch {log}.killed; kill -9 $PPID; exit 1; fi\n'
        f'exec {trtexec} "$@"\n'
    )
    killer.chmod(0o755)
    with pytest.raises((InputFileError, BuildError, MissingPackage)):
        time_on(host_of(server.word), exported, str(killer))
    assert not (exported / "times.json").exists()
    found = json.loads(time_on(host_of(server.word), exported, str(killer)).read_text())
    assert {len(rounds) for rounds in found["rounds"].values()} == {7}
    calls = log.read_text().splitlines()
    assert sum("--onnx=" in call for call in calls) == len(NAMES)
    assert sum("--loadEngine=" in call for call in calls) == 7 * len(NAMES) + 1
    shutil.rmtree(server.home / ".cache")


@needs_sshd
@pytest.mark.parametrize(
    ("identity", "key", "said", "fix"),
    [
        ("stranger", "host", "requires a password or a key", "ssh-copy-id -p {port} "),
        ("mine", "stranger", "the host key has changed", "ssh-keygen -R '[127.0.0.1]:{port}'"),
        ("mine", "", "is unknown", "accept it: ssh -p {port} "),
    ],
    ids=["no key of ours", "another host key", "an unknown host"],
)
def test_a_host_that_does_not_let_us_in_says_why(
    identity: str, key: str, said: str, fix: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client(monkeypatch, identity=identity, host=key)
    with pytest.raises(MissingPackage, match=said) as refused:
        check_host(host_of(server.word))
    assert fix.format(port=server.port) in refused.value.fix


@needs_sshd
def test_no_server_no_trtexec_and_no_engine_are_different_errors(
    server: Server, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client(monkeypatch)
    with pytest.raises(MissingPackage, match="no ssh server answers"):
        check_host(host_of("ssh://127.0.0.1:1"))
    with pytest.raises(MissingPackage, match="has no trtexec"):
        check_host(host_of(server.word), "/nowhere/trtexec")
    with pytest.raises(MissingPackage, match="has no trtexec"):
        time_on(host_of(server.word), exported, "/nowhere/trtexec")
    broken = tmp_path / "trtexec"
    broken.write_text(
        "#!/bin/sh\necho '[E] Error[4]: IBuilder::buildSerializedNetwork: unsupported'; exit 1\n"
    )
    broken.chmod(0o755)
    with pytest.raises(BuildError, match=r"no model has an engine on .*buildSerializedNetwork: unsupported"):
        time_on(host_of(server.word), exported, str(broken))
    shutil.rmtree(server.home / ".cache")


def test_the_command_prints_its_plan_and_refuses_one_without_a_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(words(tmp_path / "s", "--on", "ssh://localhost", "--dry-run")) == 0
    said = capsys.readouterr().out
    assert "ssh -o BatchMode=yes" in said
    assert not (tmp_path / "s").exists()
    assert cli(words(tmp_path / "s", "--dry-run")) == UsageError.exit_code


def test_two_models_are_compared_by_their_engines_on_a_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trtexec = str(install(tmp_path, 101600))
    models = [str(save(graphs.conv_relu("N"), tmp_path, f"{name}.onnx")) for name in "ab"]
    assert cli(["time", *models, "--on", "local", "--trtexec", trtexec, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert [(each["name"], each["rounds"]) for each in found["summaries"]] == [("a.onnx", 10), ("b.onnx", 10)]
    assert found["verdicts"][0]["answer"] == "no difference shown"
    assert "trtexec on" in found["summaries"][0]["clock"]
    plan_file = tmp_path / "a.plan"
    plan_file.write_bytes(b"")
    assert cli(["time", str(plan_file), "--on", "local"]) == UsageError.exit_code
    monkeypatch.setenv("STAND_IN", "no-kernel")
    assert cli(["time", *models, "--on", "local", "--trtexec", trtexec]) == BuildError.exit_code


@needs_sshd
def test_several_hosts_time_the_same_models_at_once(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client(monkeypatch)
    trtexec = str(install(tmp_path, 101600))
    models = [str(save(graphs.conv_relu("N"), tmp_path, f"{name}.onnx")) for name in "ab"]
    hosts = ["--on", "local", "--on", server.word]
    assert cli(["time", *models, *hosts, "--trtexec", trtexec, "--json"]) == 0
    timing = json.loads(capsys.readouterr().out)["data"]
    names = [f"{name}.onnx on {host}" for host in ("local", server.word) for name in "ab"]
    assert [each["name"] for each in timing["summaries"]] == names
    assert [(each["reference"], each["candidate"]) for each in timing["verdicts"]] == [
        tuple(names[:2]),
        tuple(names[2:]),
    ]
    shutil.rmtree(server.home / ".cache")


@needs_sshd
def test_layer_times_come_back_from_the_machine(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client(monkeypatch)
    model, trtexec = str(save(graphs.conv_relu("N"), tmp_path, "a.onnx")), str(install(tmp_path, 101600))
    command = ["time", model, "--on", server.word, "--trtexec", trtexec, "--rounds", "3"]
    assert cli([*command, "--profile", "--json"]) == 0
    timing = json.loads(capsys.readouterr().out)["data"]
    assert [(layer["name"], layer["average"]) for layer in timing["profiles"][0]["layers"]] == [
        ("conv", 0.8),
        ("relu", 0.2),
    ]
    assert timing["summaries"][0]["count"] == 3
    assert cli([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data"]["profiles"] == []
    shutil.rmtree(server.home / ".cache")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--via", "trt"),
        ("--device", "cuda"),
        ("--shapes", "x:1x3x8x8"),
        ("--inputs", "x.npz"),
        ("--warm-up", "5"),
    ],
)
def test_an_option_that_the_machine_would_ignore_is_refused(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(save(graphs.conv_relu("N"), tmp_path, "a.onnx"))
    assert cli(["time", model, "--on", "local", option, value]) == UsageError.exit_code
    assert f"error: {option}: has no effect with --on" in " ".join(capsys.readouterr().err.split())


def test_a_missing_model_is_named_before_a_missing_trtexec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["time", str(tmp_path / "zork.onnx"), "--on", "local", "--trtexec", "no-such-trtexec"]
    assert cli(command) == InputFileError.exit_code
    assert "zork.onnx: the file does not exist" in " ".join(capsys.readouterr().err.split())


def test_flags_reach_every_build_and_every_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trtexec, calls = install(tmp_path, 101600), tmp_path / "calls"
    wrapper = tmp_path / "trtexec-noted"
    wrapper.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec {trtexec} "$@"\n')
    wrapper.chmod(0o755)
    models = [str(save(graphs.conv_relu("N"), tmp_path, f"{name}.onnx")) for name in "ab"]
    command = ["time", *models, "--on", "local", "--trtexec", str(wrapper), "--profile", "--flags"]
    assert cli([*command, "--useDLACore=1 --allowGPUFallback"]) == 0
    lines = [line for line in calls.read_text().splitlines() if "--help" not in line]
    builds = [line for line in lines if "--onnx=" in line]
    builds_runs_and_profiles = 2 + 2 * 10 + 2
    assert len(lines) == builds_runs_and_profiles
    assert all(line.endswith("--useDLACore=1 --allowGPUFallback") for line in lines)
    assert len({line.partition("--timingCacheFile=")[2].split()[0] for line in builds}) == 1
    assert not any("--timingCacheFile" in line for line in lines if line not in builds)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--timingCacheFile=mine", "is set by time_trials.py"),
        ("--calib=cache", "names a file on this machine"),
        ("--staticPlugins=lib.so", "names a file on this machine"),
    ],
)
def test_flags_that_cannot_work_there_are_refused_before_anything_is_built(
    flag: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lib.so").touch()
    model = str(save(graphs.conv_relu("N"), tmp_path))
    trtexec = str(install(tmp_path, 101600))
    command = ["time", model, "--on", "local", "--trtexec", trtexec, "--flags", flag]
    assert cli(command) == UsageError.exit_code
    assert said in capsys.readouterr().err


def test_the_state_of_the_gpu_is_noted_with_the_times(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "nvpmodel": "echo NV Power Mode: 15W; echo 2",
        "nvidia-smi": 'case "$*" in *name*) echo Orin;; *) echo 1300, 51;; esac',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    times = read_times(time_on(host_of("local"), exported, str(install(tmp_path, 101600))))
    assert len(times.clocks_mhz) == len(times.celsius) == 7 * len(NAMES)
    assert times.device == "Orin (power mode 15W; 1300 MHz; 51 °C)"


@pytest.mark.parametrize(("low", "steady"), [(1000.0, False), (1250.0, True)])
def test_a_clock_that_moves_is_named(low: float, steady: bool) -> None:
    times = MeasuredTimes(digest="", gpu="GPU", rounds={}, failed={}, clocks_mhz=[1300.0, low])
    assert ("not steady" in times.device) is not steady


def test_weights_in_another_file_are_part_of_what_was_timed(tmp_path: Path) -> None:
    model = onnx.load(save(graphs.conv_relu("N"), tmp_path, "inside.onnx"))
    path = tmp_path / "outside.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    before = digest_models([path])
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(reversed(weights.read_bytes())))
    assert digest_models([path]) != before


@pytest.mark.slow
def test_a_sweep_with_builder_flags_chooses_by_times_and_remembers_slower_patterns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quantizing one more node makes the engine slower, and the outputs less accurate."""
    pytest.importorskip("optuna", reason="sweeps need the extra sweep")
    monkeypatch.setenv("STAND_IN", "pairs-slower")
    trtexec, calls = install(tmp_path, 101600), tmp_path / "calls"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {
        "trtexec": f'echo "$*" >> {calls}; exec {trtexec} "$@"',
        "nvidia-smi": "echo Orin",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    dla = "--useDLACore=0 --allowGPUFallback"
    out = tmp_path / "sweep"
    command = ["sweep", str(save(models.concat_cnn(), tmp_path)), "--samples", "random:4", "--out", str(out)]
    settings = (
        f'sweep.space={{"calibrate.method": [max], "build.flags": ["", "{dla}"]}}',
        "sweep.keep_float=[0, 1]",
        "sweep.speed=none",
    )
    command += [word for setting in settings for word in ("--set", setting)]
    command += ["--build-cache", str(tmp_path / "cache"), "--on", "local"]

    def swept() -> list[dict[str, Any]]:
        assert cli(command) == 0
        data = result(out)
        assert data["speed"] == "measured"
        return [trial for _, trial in sorted((trial["settings"], trial) for trial in data["trials"])]

    first = swept()
    assert len({trial["outcome"]["ms"] for trial in first}) == 2
    built = [line.endswith(dla) for line in calls.read_text().splitlines() if "--onnx=" in line]
    assert (built.count(True), built.count(False)) == (2, 2 + 2)  # the float networks have the recipe's flags
    records = sorted((tmp_path / "cache" / "patterns").iterdir())
    assert len(records) == 2  # one for each line of flags
    second = swept()  # the trials are finished, only their times are measured again
    assert [trial["state"] for trial in second] == [
        "complete" if trial["outcome"]["kept_float"] else "failed" for trial in first
    ]
    assert all("in an earlier search" in trial["reason"] for trial in second if trial["state"] == "failed")


@pytest.mark.slow
@pytest.mark.rtx
@needs_sshd
def test_fixes_are_chosen_by_the_times_of_a_host(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx (pip install 'qdqtool[rtx]')")
    server.client(monkeypatch)
    trtexec = str(install(tmp_path, 101600))
    model = str(save(GRAPHS["float_weight"](), tmp_path))
    command = ["fix", model, "--samples", "none", "--out", str(tmp_path / "out"), "--on", server.word]
    assert cli([*command, "--trtexec", trtexec]) == 0
    report = FIXES.read(tmp_path / "out" / "fixes.json")
    assert report.host == server.word
    why = next(trial.why for trial in report.trials if trial.subject == "c2")
    assert why.startswith(f"no difference shown on {server.word}: ")
    shutil.rmtree(server.home / ".cache")


def test_models_are_not_packed_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 32 << 20
    (tmp_path / "0001.onnx").write_bytes(bytes(size))
    sent: list[int] = []

    def ran(
        _: Host, command: list[str], piped: IO[bytes] | None = None, *, quiet: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        if piped is not None:
            sent.append(piped.seek(0, os.SEEK_END))
        return subprocess.CompletedProcess(command, int(quiet), b"{}", b"")

    monkeypatch.setattr(elsewhere, "_ran", ran)
    tracemalloc.start()
    elsewhere.time_on(Host(word="ssh://a", target="a"), tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sent[0] > size > 4 * peak
