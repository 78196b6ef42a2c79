#!/usr/bin/env python3
"""Measure distill_dataset.py against a mock server of 50 ms and 64 slots, and print a table.

The server is tests/mock_teacher.py in a process of its own. What it can give is measured with bare sockets, 64 at a
time; the baseline asks one question after the other, as most distillation scripts do. Rates are those of the loop,
without start-up; "whole" is the command as a user runs it. Medians of interleaved rounds.

usage: python benchmarks/distill.py [--prompts 10000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

HERE = Path(__file__).parent
SCRIPT = HERE.parent / "assets" / "distill_dataset.py"
sys.path.insert(0, str(HERE.parent / "tests"))

from mock_teacher import process  # noqa: E402

LATENCY, SLOTS = 0.05, 64
SEQUENTIAL = 60  # requests of the baseline


def prompts(count: int) -> list[str]:
    return [f"What is the capital of country number {n}? " + "Please explain. " * 12 for n in range(count)]


def body(prompt: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}], "temperature": 0.7}).encode()


async def bare(url: str, questions: list[str]) -> float:
    """Requests a second of bare sockets: what the server gives to 64 at a time."""
    place, source = urlsplit(url), iter(questions)

    async def worker() -> None:
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        for question in source:
            asked = body(question)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(asked)}\r\n\r\n"
            writer.write(head.encode() + asked)
            told = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(told.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
        writer.close()

    started = time.monotonic()
    await asyncio.gather(*(worker() for _ in range(SLOTS)))
    return len(questions) / (time.monotonic() - started)


def sequential(url: str, questions: list[str]) -> float:
    """Requests a second of one question after the other."""
    started = time.monotonic()
    for question in questions:
        asked = urllib.request.Request(f"{url}/chat/completions", body(question), {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked) as answer:
            json.load(answer)
    return len(questions) / (time.monotonic() - started)


def respond(url: str, questions: list[str]) -> tuple[float, float, dict]:
    """(requests a second of the loop, of the whole command, its result)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.jsonl"
        file.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in questions))
        words = ["respond", file, "--base-url", url, "--teacher", "m", "--out", Path(folder) / "train.jsonl", "--json"]
        started = time.monotonic()
        done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=True)
        whole = len(questions) / (time.monotonic() - started)
    result = json.loads(done.stdout)["result"]
    assert result["rows"] == len(questions), result
    return result["requests_per_second"], whole, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    questions = prompts(args.prompts)
    rounds = []
    with process("--latency", LATENCY, "--slots", SLOTS) as url:
        for _ in range(args.rounds):
            rounds.append(
                (
                    asyncio.run(bare(url, questions)),
                    sequential(url, questions[:SEQUENTIAL]),
                    *respond(url, questions)[:2],
                )
            )
            print(" ".join(f"{rate:.0f}/s" for rate in rounds[-1]), file=sys.stderr, flush=True)
    given, one, loop, whole = (median(rates) for rates in zip(*rounds, strict=True))
    share = median(rates[2] / rates[0] for rates in rounds)
    factor = median(rates[2] / rates[1] for rates in rounds)
    with process("--latency", LATENCY, "--slots", SLOTS, "--fault-rate", 0.1) as url:
        broken, _, result = respond(url, questions[: args.prompts // 4])
    print("| what | measured | goal | met |\n| --- | --- | --- | --- |")
    print(f"| the server: 64 bare sockets | {given:,.0f} requests/s of {SLOTS / LATENCY:,.0f} |  |  |")
    print(f"| one question after the other | {one:.1f} requests/s |  |  |")
    print(f"| respond, its loop | {loop:,.0f} requests/s |  |  |")
    print(f"| respond, the whole command, {args.prompts:,} prompts | {whole:,.0f} requests/s |  |  |")
    print(f"| share of the server's throughput | {share:.0%} | >= 90 % | {'yes' if share >= 0.9 else 'NO'} |")
    print(f"| against one question after the other | {factor:.0f} x | >= 40 x | {'yes' if factor >= 40 else 'NO'} |")
    told = f"{broken:,.0f} requests/s, {result['retried']} retries, {result['rows']:,} of {args.prompts // 4:,} rows"
    print(f"| 10 % of answers 429, 500, dropped, garbage or cut | {told} | all rows | yes |")


if __name__ == "__main__":
    main()
