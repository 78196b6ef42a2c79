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
from gemma_trainer.plan.packages import check_packages, install_missing, versions
from gemma_trainer.plan.plan import choose_backend, choose_dtype, choose_mode

ASSETS = Path(__file__).parent


def add_arguments(parser):
    pass


def run(args) -> cli.Outcome:
    hardware = detect()
    cpu_only = hardware.kind != "cuda"
    table, warnings = check_packages(cpu_only)
    backend, why_backend = choose_backend("auto", hardware)
    mode, why_mode = choose_mode(None, hardware)
    dtype, why_dtype = choose_dtype(None, mode, hardware)
    result = {
        "hardware": hardware.as_dict(),
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
    return cli.Outcome(result=result, warnings=warnings, next=_next(table, cpu_only), summary="\n".join(lines))


def _next(table: dict, cpu_only: bool) -> list[str]:
    """One command for everything that is missing, else the demo."""
    lacking = list(dict.fromkeys(name for state in table.values() for name in state["missing"]))
    return [install_missing(lacking, cpu_only) or cli.command(ASSETS / "sft_train.py", "--demo")]


if __name__ == "__main__":
    sys.exit(cli.main("doctor.py", __doc__, add_arguments, run))
