"""What is left when a run ends early: nothing half, nothing running, and plain words."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

from preparing import assistant, chat, lines, prep, user
from scripts import command

CASES = Path(__file__).parent / "cases"
COMMANDS = {
    "convert": ("convert", "rows.jsonl", "--out", "out/a.jsonl"),
    "split": ("split", "rows.jsonl", "--out", "out"),
    "report": ("validate", "rows.jsonl", "--report", "out/report.jsonl"),
    "records": ("validate", "rows.jsonl", "--records", "out"),
    "page": ("stats", "rows.jsonl", "--html", "out/page.html"),
}


@pytest.fixture
def place(tmp_path) -> Path:
    """A folder with rows of which every third is refused."""
    rows = [chat(user(f"Question {at}? " * 9), assistant("Yes. " * 9)) if at % 3 else {"x": at} for at in range(6000)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (tmp_path / "out").mkdir()
    return tmp_path


def left(place: Path) -> list[str]:
    return sorted(path.name for path in (place / "out").rglob("*"))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_leaves_no_half_file(name, workers, place):
    def limit() -> None:  # as a disk with so much room
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))

    words = command("dataset_prep.py", *COMMANDS[name], "--workers", workers, "--json")
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=120, preexec_fn=limit)
    assert "Traceback" not in done.stderr
    (problem,) = json.loads(done.stdout)["errors"]
    assert done.returncode == 6 and problem["code"] == "disk-full" and "Make room" in problem["fix"]
    assert left(place) == []


def test_the_output_that_did_not_fit_is_named(place):
    def limit() -> None:  # the temporary files fit, the rows do not
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    words = command("dataset_prep.py", *COMMANDS["convert"], "--json")
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=120, preexec_fn=limit)
    assert json.loads(done.stdout)["errors"][0]["file"] == "out/a.jsonl"


@pytest.mark.parametrize("words", [("convert", "--out"), ("validate", "--report"), ("stats", "--html")])
@pytest.mark.parametrize("device", ["/dev/full", "/dev/null"])
def test_a_device_is_no_output(words, device, place):
    action, flag = words
    code, document = prep(action, place / "rows.jsonl", flag, device, "--overwrite")
    assert code == 2 and document["errors"][0]["code"] == "output-unwritable"


@pytest.mark.slow
@pytest.mark.parametrize("whole_group", [False, True], ids=["kill", "Ctrl-C"])
@pytest.mark.parametrize("name", ["convert", "split", "report", "records"])
def test_a_signal_ends_all_workers(name, whole_group, place):
    """SIGINT to the command alone, or as a terminal sends it to the workers too."""
    data = (place / "rows.jsonl").read_bytes()
    (place / "rows.jsonl").write_bytes(data * 40)
    (place / "short.jsonl").write_bytes(data)
    names = COMMANDS[name] if name != "records" else ("validate", "short.jsonl", "rows.jsonl", "--records", "out")
    words = command("dataset_prep.py", *names, "--workers", 2, "--json")
    process = subprocess.Popen(words, cwd=place, stdout=-1, stderr=-1, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (children := _children(process.pid)) or (name == "records" and not list(place.glob("out/short*.record"))):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.3)
    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
    out, told = process.communicate(timeout=60)
    problem = json.loads(out)["errors"][0]
    assert process.returncode == 6 and problem["code"] == "interrupted" and "Traceback" not in told
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    if name == "records":
        assert "1 of 2 files are finished and kept in out" in problem["message"]
        assert all(file.startswith("short.jsonl.") for file in left(place))
    else:
        assert left(place) == []


def _children(process: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("action", ["validate", "convert", "split", "inspect", "stats"])
def test_every_command_reads_stdin(action, workers, place):
    """What is told of it names `-`, and media paths start in the current folder."""
    image = {"type": "image", "image": "dot.png"}
    (place / "dot.png").write_bytes((CASES / "media" / "dot.png").read_bytes())
    seen = chat(user([image, {"type": "text", "text": "What?"}]), assistant("A dot."))
    same = chat(user("a"), assistant("b"))
    data = "".join(json.dumps(row) + "\n" for row in [seen, same, same, {"x": 1}])
    more = {"validate": ("--report", "out/r.jsonl"), "convert": ("--out", "out/a.jsonl"), "split": ("--out", "out")}
    words = command(
        "dataset_prep.py", action, "-", *more.get(action, ("--html", "out/a.html")), "--workers", workers, "--json"
    )
    done = subprocess.run(words, cwd=place, input=data, capture_output=True, text=True, timeout=120)
    document = json.loads(done.stdout)
    assert done.returncode == 3 and document["result"]["errors_by_code"] == {"unknown-columns": 1}
    assert [problem["file"] for problem in document["errors"]] == ["-"]
    assert not any("stdin-" in file.read_text("utf-8") for file in (place / "out").iterdir())
    if action == "validate":
        assert [p["message"] for p in document["warnings"] if p["code"] == "duplicate-row"] == [
            "the same row as line 2"
        ]
    if action == "convert":
        assert lines(place / "out" / "a.jsonl")[0]["messages"][0]["content"][0]["image"] == "../dot.png"
        assert prep("validate", place / "out" / "a.jsonl")[0] == 0


def test_stdin_has_no_record(place):
    assert prep("validate", "-", "--records", place / "out")[1]["errors"][0]["code"] == "usage"


@pytest.mark.parametrize("workers", [1, 2])
def test_media_paths_hold_whoever_converts(workers, tmp_path):
    """Rows of several folders, enough of them for several batches."""
    image = {"type": "image", "image": "media/dot.png"}
    for folder in ("a", "b"):
        (tmp_path / folder / "media").mkdir(parents=True)
        (tmp_path / folder / "media" / "dot.png").write_bytes((CASES / "media" / "dot.png").read_bytes())
        rows = [
            chat(user([image, {"type": "text", "text": f"{folder} {at} " * 40}]), assistant("A dot."))
            for at in range(4000)
        ]
        rows[7] = {"x": 1}
        (tmp_path / folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    out = tmp_path / "deep" / "er" / "out.jsonl"
    code, document = prep("convert", tmp_path / "a", tmp_path / "b", "--out", out, "--workers", workers)
    assert code == 3 and document["result"]["repaired"]["media-path"] == document["result"]["rows_out"] == 7998
    paths = [row["messages"][0]["content"][0]["image"] for row in lines(out)]
    assert paths == ["../../a/media/dot.png"] * 3999 + ["../../b/media/dot.png"] * 3999
    assert [
        (Path(entry["file"]).parent.name, entry["line"]) for entry in lines(Path(document["result"]["rejects"]))
    ] == [("a", 8), ("b", 8)]
