#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["pyyaml>=6"]
# ///
"""Say what this machine can do for fine-tuning Gemma, and what it still needs.

Looks at hardware, packages and their versions. Installs nothing and reads no network.

examples:
  python assets/doctor.py
  python assets/doctor.py --json
"""

import sys
from pathlib import Path

from gemma_trainer import cli
from gemma_trainer.plan.hardware import detect
from gemma_trainer.plan.packages import check_packages, versions
from gemma_trainer.plan.plan import choose_backend, choose_dtype, choose_mode

ASSETS = Path(__file__).parent


def add_arguments(parser):
    pass


def run(args) -> cli.Outcome:
    hardware = detect()
    table, warnings = check_packages(cpu_only=hardware.kind != "cuda")
    backend, why_backend = choose_backend("auto", hardware)
    mode, why_mode = choose_mode(None, hardware)
    dtype, why_dtype = choose_dtype(None, mode, hardware)
    result = {
        "hardware": {**hardware.as_dict(), "summary": str(hardware)},
        "versions": versions(),
        "work": table,
        "route": {
            "backend": backend,
            "mode": mode,
            "dtype": dtype,
            "why": {"backend": why_backend, "mode": why_mode, "dtype": why_dtype},
        },
    }
    lines = [f"machine   {hardware}", f"route     {backend}, {mode}, {dtype}: {why_mode}; {why_dtype}", ""]
    for work, state in table.items():
        lines.append(
            f"{'ready  ' if state['ready'] else 'missing'}  {work}"
            + (f": {state['install']}" if state["install"] else "")
        )
    lines += ["", "versions  " + ", ".join(f"{name} {text}" for name, text in result["versions"].items())]
    return cli.Outcome(result=result, warnings=warnings, next=_next(table), summary="\n".join(lines))


def _next(table: dict) -> list[str]:
    install = list(dict.fromkeys(word for state in table.values() for word in state["missing"]))
    if install:
        return [table_install(table)]
    return [cli.command(ASSETS / "sft_train.py", "--demo")]


def table_install(table: dict) -> str:
    """One command for everything that is missing."""
    words = [word for state in table.values() if state["install"] for word in state["install"].split()[4:]]
    return "python -m pip install " + " ".join(dict.fromkeys(words))


if __name__ == "__main__":
    sys.exit(cli.main("doctor.py", __doc__, add_arguments, run))
