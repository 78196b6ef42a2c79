"""What holds for every script: help, JSON, exit codes, configuration files."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from gemma_trainer import cli
from gemma_trainer.plan import packages
from gemma_trainer.rows.problems import DEPENDENCY_MISSING, Failure
from scripts import ASSETS, command, run

SCRIPTS = sorted(path.name for path in ASSETS.glob("*.py"))
HEAVY = {"torch", "transformers", "datasets", "trl", "peft", "tokenizers", "pyarrow", "matplotlib"}
PROBE = (
    "import sys, runpy; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[0].rsplit('/', 1)[0])\n"
    "try: runpy.run_path(sys.argv[0], run_name='__main__')\nexcept SystemExit as end: print(end.code)\n"
    "print(' '.join(sys.modules), file=sys.stderr)"
)


def test_the_scripts_are_there():
    assert {"doctor.py", "dataset_prep.py", "sft_train.py", "evaluate.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_imports_nothing_heavy_and_names_exit_codes(script):
    done = subprocess.run([sys.executable, "-c", PROBE, str(ASSETS / script), "--help"], capture_output=True, text=True)
    assert not HEAVY & set(done.stderr.split()), done.stderr[-500:]
    assert "exit codes:" in done.stdout and "examples:" in done.stdout and done.stdout.rstrip().endswith("0")


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_run_without_an_install(script):
    """PEP 723: `uv run` reads the header; the ranges are those of pyproject.toml."""
    text = (ASSETS / script).read_text()
    header = re.search(r"^# /// script\n(.*?)^# ///$", text, re.M | re.S).group(1)
    declared = dict(re.findall(r'"([\w-]+)([^";]*)', header.replace('requires-python = ">=3.10"', "")))
    project = (ASSETS.parent / "pyproject.toml").read_text()
    for name, versions in declared.items():
        assert f'"{name}{versions}' in project, f"{name}{versions} is not what pyproject.toml says"


@pytest.mark.parametrize("script", SCRIPTS)
def test_usage_errors_are_json_when_asked(script):
    done = run(script, "--json", "--no-such-flag")
    assert done.code == 2 and done.json["errors"][0]["code"] == "usage"
    jsonschema.validate(done.json, json.loads((ASSETS / "schemas" / "report.json").read_text()))


def test_doctor_tells_hardware_versions_and_what_is_missing(monkeypatch):
    done = run("doctor.py", "--json")
    result = done.json["result"]
    assert done.code == 0 and result["hardware"]["cpu_cores"] >= 1 and result["route"]["backend"] == "trl"
    monkeypatch.setattr(packages, "installed", lambda name: None if name in ("trl", "torch", "unsloth") else "1.0")
    table, _ = packages.check_packages(cpu_only=True)
    assert table["train"] == {
        "ready": False, "missing": ["torch", "trl"], "install": "python -m pip install torch==2.13.0 trl"
    }  # fmt: skip


def test_doctor_knows_versions_that_fail(monkeypatch):
    monkeypatch.setattr(packages, "installed", lambda name: "1.15.0" if name == "trl" else None)
    _, problems = packages.check_packages(cpu_only=True)
    assert [p.code for p in problems] == ["version-clash"] and "trl==1.16.0" in problems[0].fix


def test_a_missing_package_ends_with_the_install_command(monkeypatch):
    from gemma_trainer.train import run as training

    monkeypatch.setattr(packages, "installed", lambda name: None if name == "bitsandbytes" else "9.0")
    training.require_training_packages("lora")
    with pytest.raises(Failure) as caught:
        training.require_training_packages("qlora")
    assert caught.value.exit_code == DEPENDENCY_MISSING
    assert "python -m pip install bitsandbytes" in str(caught.value)


def test_config_files_are_checked_as_strictly_as_flags(tmp_path):
    config = tmp_path / "run.yaml"
    for text, message in (
        ("learning_rat: 1", "did you mean `learning_rate`"),
        ("learning-rate: fast", "not accepted"),
        ("mode: lorra", "qlora, lora, full"),
        ("plan: maybe", "true or false"),
        ("- a list", "not a mapping"),
        ("a: [", "run.yaml"),
    ):
        config.write_text(text)
        done = run("sft_train.py", "--config", config, "--json")
        assert done.code == 2 and message in done.json["errors"][0]["message"], done.stdout


def test_the_command_line_wins_over_the_config(tmp_path):
    import argparse

    config = tmp_path / "run.yaml"
    config.write_text("learning-rate: 0.5\nseed: 7\ndata: [a.jsonl, b.jsonl]\nplan: true\n")
    seen = []

    def arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--learning-rate", type=float, default=1.0)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--data", nargs="+")
        parser.add_argument("--plan", action="store_true")

    code = cli.main(
        "x.py", "", arguments, lambda args: seen.append(args) or cli.Outcome(), ["--config", str(config), "--seed", "3"]
    )
    assert code == 0
    assert (seen[0].learning_rate, seen[0].seed, seen[0].data, seen[0].plan) == (0.5, 3, ["a.jsonl", "b.jsonl"], True)


def test_an_internal_error_is_one_line_and_exit_1(capsys):
    def broken(args):
        raise RuntimeError("first line\nsecond line")

    assert cli.main("x.py", "", lambda parser: None, broken, ["--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["errors"][0]["message"] == "RuntimeError: first line" and captured.err == ""


def test_what_a_library_prints_does_not_reach_stdout(capsys):
    def noisy(args):
        print("hello from a library")
        return cli.Outcome(result={"a": 1})

    assert cli.main("x.py", "", lambda parser: None, noisy, ["--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["result"] == {"a": 1} and "hello" in captured.err


@pytest.mark.parametrize(
    "words",
    [
        ("--learning-rate", "inf"),
        ("--learning-rate", "1e6"),
        ("--learning-rate", "nan"),
        ("--epochs", "inf"),
        ("--seed", "-1"),
        ("--seed", str(2**70)),
        ("--lora-rank", "0"),
        ("--max-steps", "-3"),
    ],
)
def test_numbers_that_cannot_be_meant_are_usage_errors(words):
    done = run("sft_train.py", "--model", "m", "--data", "d", *words, "--json")
    assert done.code == 2 and done.codes == {"usage"}


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_a_stdout_that_takes_nothing_is_one_line():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, ASSETS / "doctor.py"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr and "cannot be written" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_what_schedulers_send_ends_like_ctrl_c(number, capsys):
    def terminated(args):
        os.kill(os.getpid(), number)
        time.sleep(5)

    before = {number: signal.getsignal(number) for number in cli.STOPS}
    assert cli.main("x.py", "", lambda parser: None, terminated, ["--json"]) == 6
    for each, handler in before.items():  # a process that was told to end hears nothing more
        signal.signal(each, handler)
    assert json.loads(capsys.readouterr().out)["errors"][0]["code"] == "interrupted"


def test_an_error_that_was_made_of_a_signal_is_the_signal(capsys):
    """As C extensions do, which know nothing of KeyboardInterrupt."""
    from gemma_trainer.train.run import as_failure

    seen = []

    def terminated(args):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except KeyboardInterrupt:
            error = RuntimeError("cannot convert")
            seen.append(as_failure(error, Path()))
            raise error from None

    before = {number: signal.getsignal(number) for number in cli.STOPS}
    assert cli.main("x.py", "", lambda parser: None, terminated, ["--json"]) == 6
    for each, handler in before.items():
        signal.signal(each, handler)
    assert json.loads(capsys.readouterr().out)["errors"][0]["code"] == "interrupted"
    assert (seen[0].exit_code, seen[0].problem.code) == (6, "interrupted")


@pytest.mark.parametrize("number", cli.STOPS)
def test_a_signal_after_the_result_changes_nothing(number):
    """While Python shuts down, which takes seconds where torch was imported."""
    code = (
        f"import atexit, os, sys\nsys.path.insert(0, {str(ASSETS)!r})\nfrom gemma_trainer import cli\n"
        f"atexit.register(lambda: os.kill(os.getpid(), {int(number)}))\n"
        "sys.exit(cli.main('x.py', '', lambda parser: None, lambda args: cli.Outcome()))"
    )
    done = subprocess.run([sys.executable, "-c", code, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and json.loads(done.stdout)["ok"], done.stderr


@pytest.mark.parametrize("text", ["json: true\n", "json: true\nno_such_flag: 1\n"])
@pytest.mark.parametrize("words", [(), ("--epochs", "x")])
def test_json_may_be_asked_for_in_the_config(text, words, tmp_path):
    (tmp_path / "run.yaml").write_text(text)
    done = run("sft_train.py", "--config", tmp_path / "run.yaml", *words)
    assert done.code == 2 and done.codes <= {"usage", "unknown-config-key"}


@pytest.mark.parametrize("script, words", [("sft_train.py", ["--js"]), ("dataset_prep.py", ["validate", "x", "--js"])])
def test_flags_are_written_out(script, words):
    """What a flag does is looked up in the words of the command too."""
    done = run(script, *words)
    assert done.code == 2 and "unrecognized arguments: --js" in done.stderr and done.stdout == ""


def test_config_values_are_plain(tmp_path):
    (tmp_path / "run.yaml").write_text("model: {a: 1}\n")
    done = run("sft_train.py", "--config", tmp_path / "run.yaml", "--data", "d", "--json")
    assert done.code == 2 and "plain values" in done.json["errors"][0]["message"]


def test_a_reporting_package_that_is_missing_is_told(monkeypatch):
    from gemma_trainer.train import run as training

    monkeypatch.setattr(training, "installed", lambda name: None)
    with pytest.raises(Failure, match="python -m pip install wandb"):
        training.require_training_packages("lora", "wandb")


def test_without_network_a_hub_id_is_a_remote_failure(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    from gemma_trainer.data.tokens import load_tokenizer

    def unreachable(*args, **options):
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    with pytest.raises(Failure, match="cannot be reached") as caught:
        load_tokenizer("org/name")
    assert caught.value.exit_code == 7


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("place", [ASSETS.parent, ASSETS, Path("/")], ids=["pack", "assets", "elsewhere"])
def test_the_help_that_a_usage_error_names_can_be_asked_for(script, place):
    done = run(script, "--no-such-flag", "--json", cwd=place)
    _, *words = shlex.split(done.json["errors"][0]["fix"])
    assert (place / words[0]).samefile(ASSETS / script) and words[-1] == "--help"


@pytest.mark.parametrize("words", [("--max-length", "0"), ("--no-such-flag",), ("--shard", "5/3")])
def test_a_usage_error_of_a_sub_command_names_its_help(words):
    done = run("dataset_prep.py", "validate", "x.jsonl", *words, "--json")
    assert done.json["errors"][0]["fix"].endswith("dataset_prep.py validate --help")


@pytest.mark.parametrize("words", [("--json",), ()])
def test_a_closed_stdout_is_a_failure(words):
    line = shlex.join([*command("doctor.py", *words)]) + " >&-"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "cannot be written" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty")
def test_people_see_how_far_a_command_is(tmp_path):
    """A bar on a terminal's stderr, and nothing of it where there is none."""
    import fcntl
    import pty
    import struct
    import termios

    file = tmp_path / "rows.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "A?"}, {"role": "assistant", "content": "B."}]}\n' * 9)
    words = command("dataset_prep.py", "validate", file, "--json")
    child, terminal = pty.fork()
    if child == 0:
        os.execv(words[0], words)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    shown = b""
    with contextlib.suppress(OSError):  # the end of the child is an error of its terminal
        while block := os.read(terminal, 1 << 16):
            shown += block
    os.waitpid(child, 0)
    assert b"validate:   0%" in shown and b'{"ok": true' in shown
    assert "validate:" not in run("dataset_prep.py", "validate", file).stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "UTF8"])
def test_json_is_json_in_every_encoding_of_stdout(encoding, tmp_path):
    words = command("dataset_prep.py", "validate", "ü☃\udcff.jsonl", "--json")
    done = subprocess.run(words, capture_output=True, cwd=tmp_path, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert "ü☃" in json.loads(done.stdout.decode("utf-8"))["errors"][0]["message"] and done.returncode == 2
