"""distill_dataset.py against a real OpenAI-compatible server: `transformers serve` (pip install "transformers[serving]")."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from distilling import distill, read_lines
from training import make_tiny, question_rows

pytestmark = pytest.mark.heavy


@contextmanager
def serving(model: Path, port: int):
    """Gives the process once it answers."""
    words = ["serve", model, "--port", port, "--device", "cpu", "--dtype", "float32"]
    command = [Path(sys.executable).with_name("transformers"), *words]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(list(map(str, command)), env=environment, **quiet) as server:
        try:
            for _ in range(240):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None, "the server ended"
                    time.sleep(0.5)
            yield server
        finally:
            server.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_real_server_answers_dies_and_comes_back(tmp_path):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    model, port = make_tiny(tmp_path / "tiny").path, free_port()
    prompts, replies = tmp_path / "prompts.jsonl", tmp_path / "train.replies.jsonl"
    lines = [json.dumps({"prompt": row["messages"][0]["content"] + f" {n}"}) for n, row in enumerate(question_rows(30))]
    words = ["respond", prompts, "--base-url", f"http://127.0.0.1:{port}/v1", "--teacher", model, "--json"]
    words += ["--out", tmp_path / "train.jsonl", "--max-new-tokens", 8, "--concurrency", 4, "--retries", 1]
    with serving(model, port) as server:
        prompts.write_text("\n".join(lines[:10]))
        plan = distill(*words, "--plan")
        assert str(model) in plan.json["result"]["notes"][0]
        done = distill(*words)
        assert done.code == 0 and done.json["result"]["requests"] == 10, done.stdout
        server.kill()
        server.wait()
        prompts.write_text("\n".join(lines))
        stopped = distill(*words)
        assert stopped.code == 7 and stopped.codes >= {"teacher-failed"}
    with serving(model, port):
        done = distill(*words)
        assert done.code == 0 and done.json["result"]["requests"] == 20, done.stdout
        schema = tmp_path / "schema.json"
        schema.write_text('{"type": "object", "properties": {"sql": {"type": "string"}}, "required": ["sql"]}')
        asked = distill(*words, "--overwrite", "--schema", schema, "--thinking", "off", "--max-requests", 60)
        assert asked.code == 6 and asked.json["result"]["requests"] == 30
    told = [line["reply"] for line in read_lines(replies)]
    assert len(told) == 60 and {reply["finish_reason"] for reply in told} <= {"length", "stop"}
    assert all(0 < reply["usage"]["completion_tokens"] <= 16 and reply["model"] for reply in told)
