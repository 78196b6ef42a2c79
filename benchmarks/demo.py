#!/usr/bin/env python3
"""Time the README's main command and print one table row: wall and CPU seconds, peak memory, what was learned.

usage: python benchmarks/demo.py [--seeds 0 1 2]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "assets" / "sft_train.py"
COLUMNS = "| seed | wall s | CPU s | peak MiB | exact before | exact after | SQL result after | loss before | loss after | unseen exact | unseen SQL |"


def measure(seed: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, str(SCRIPT), "--demo", "--json", "--seed", str(seed)]
        started = time.monotonic()
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - started
    if status:
        raise SystemExit(f"the demo ended with status {status}: {output[:500]!r}")
    result = json.loads(output)["result"]
    first, last, unseen = result["before"], result["after"], result["unseen_tables"]["after"]
    cells = [
        f"{seed}",
        f"{wall:.0f}",
        f"{usage.ru_utime + usage.ru_stime:.0f}",
        f"{usage.ru_maxrss / 1024:.0f}",
        f"{first['exact_match']:.1%}",
        f"{last['exact_match']:.1%}",
        f"{last['sql_match']:.1%}",
        f"{first['loss']:.3f}",
        f"{last['loss']:.3f}",
        f"{unseen['exact_match']:.1%}",
        f"{unseen['sql_match']:.1%}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    seeds = parser.parse_args().seeds
    print(COLUMNS)
    print("|" + " --- |" * (COLUMNS.count("|") - 1))
    for seed in seeds:
        print(measure(seed), flush=True)


if __name__ == "__main__":
    main()
