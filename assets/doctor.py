#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["pyyaml>=6"]
# ///
"""Say what this machine can do for fine-tuning Gemma, what it still needs, and which models fit.

Looks at hardware, packages and their versions. Installs nothing and reads no network: sizes of released models are
known, those of others are read from their folder.

examples:
  python assets/doctor.py
  python assets/doctor.py --model google/gemma-4-12B-it --emulate 1xRTX4090-24G
  python assets/doctor.py --model runs/mine --method dpo --max-length 4096 --json
"""

import sys
from pathlib import Path

from gemma_trainer import cli
from gemma_trainer.plan import answer
from gemma_trainer.plan.choices import Wishes, budget_of
from gemma_trainer.plan.emulate import FORMS, emulate
from gemma_trainer.plan.fit import fit, misfit
from gemma_trainer.plan.hardware import Hardware, detect
from gemma_trainer.plan.memory import GIB, TEXTS
from gemma_trainer.plan.packages import check_packages, install_missing, versions
from gemma_trainer.plan.processes import choose_processes, on_each_node
from gemma_trainer.plan.size import size_of
from gemma_trainer.rows.problems import OK, UNSUPPORTED, Failure, Problem

ASSETS = Path(__file__).parent


def add_arguments(parser):
    parser.add_argument("--model", metavar="ID|DIR", help="hub id of a released Gemma, or a local folder")
    parser.add_argument("--method", choices=list(TEXTS), default="sft", help="kind of training (default sft)")
    parser.add_argument("--max-length", type=cli.positive(int), default=2048, help="tokens a text (default 2048)")
    parser.add_argument("--emulate", metavar="HARDWARE", help=f"answer for other hardware: {FORMS}")


def run(args) -> cli.Outcome:
    hardware = detect() if args.emulate is None else emulate(args.emulate)
    wishes = answer.wishes_for(hardware, args.method, args.max_length)
    budget = budget_of(hardware) / GIB
    outcome = cli.Outcome({"hardware": hardware.as_dict(), "budget_gib": round(budget, 2)})
    lines = [f"machine   {hardware}; a run may take {budget:.1f} GiB of each device"]
    if args.model:
        lines += _about_model(outcome, args, hardware, wishes)
    else:
        lines += _about_machine(outcome, hardware, wishes)
    if not args.emulate:
        lines += ["", *_about_packages(outcome, hardware)]
    used = _processes(hardware, wishes)
    if used < hardware.devices and outcome.result["route"]:
        text = f"{used} of {hardware.devices} devices are used by the training scripts"
        outcome.warnings.append(Problem("gpus-unused", text))
    if not outcome.next and not outcome.errors:
        outcome.next.append(cli.command(ASSETS / "sft_train.py", "--demo"))
    outcome.summary = "\n".join(lines)
    return outcome


def _processes(hardware: Hardware, wishes: Wishes) -> int:
    return choose_processes(None, wishes.effective, hardware, None)[0]


def _about_model(outcome: cli.Outcome, args, hardware: Hardware, wishes: Wishes) -> list[str]:
    """How the model fits, and the command that trains it."""
    model = size_of(args.model)
    found = fit(model, hardware, wishes, _processes(hardware, wishes))
    facts, table = answer.describe(model), answer.modes_table(model, hardware, wishes)
    outcome.result |= {
        "model": facts,
        "table": table,
        "fit": found.as_dict(),
        "route": _route(outcome, hardware, args.method, found),
    }
    outcome.warnings += answer.doubts(model, args.max_length)
    if not found.fits:
        outcome.errors.append(misfit(found))
    launch = cli.command(ASSETS / f"{args.method}_train.py", *answer.arguments(found, hardware, ASSETS, args.model))
    if outcome.errors:
        outcome.exit_code = UNSUPPORTED
        outcome.next += answer.plans(found, launch, args.emulate) if outcome.result["route"] else []
    else:
        settings = found.settings
        outcome.next.append(on_each_node(launch, settings.ranks, settings.parallel, hardware) or launch)
    lines = [f"model     {answer.model_text(facts)}", "", answer.table_text(table), ""]
    lines += [f"memory    {answer.memory_text(found)}", *_route_lines(outcome.result["route"])]
    lines += [f"way       {way}" for way in found.ways]
    return lines + (
        ["rows      those of the command are the example's: put your own in their place"] if outcome.next else []
    )


def _about_machine(outcome: cli.Outcome, hardware: Hardware, wishes: Wishes) -> list[str]:
    """The largest models that fit."""
    found = answer.largest(hardware, wishes)
    outcome.result |= {"largest": found, "route": _route(outcome, hardware, wishes.method)}
    outcome.exit_code = UNSUPPORTED if outcome.errors else OK
    lines = _route_lines(outcome.result["route"])
    for mode, best in found.items():
        text = f"{best['model']} ({best['gib']:.1f} GiB)" if best else "no released model fits"
        lines.append(f"largest   {mode}: {text}")
    return lines


def _route(outcome: cli.Outcome, hardware: Hardware, method: str, found=None) -> dict | None:
    """None, and an error, where no script trains."""
    try:
        return answer.route(found, hardware, method)
    except Failure as failure:
        outcome.errors.append(failure.problem)
        return None


def _route_lines(route: dict | None) -> list[str]:
    if route is None:
        return []
    lines = [f"route     {route['backend']}, {route['mode']}, {route['dtype']}"]
    return lines + [f"why       {name}: {text}" for name, text in route["why"].items()]


def _about_packages(outcome: cli.Outcome, hardware: Hardware) -> list[str]:
    """What is installed, and as the first command what is not."""
    cpu_only = hardware.kind != "cuda"
    table, problems = check_packages(cpu_only)
    found = versions()
    outcome.result |= {"versions": found, "work": table}
    outcome.warnings += problems
    lacking = list(dict.fromkeys(name for state in table.values() for name in state["missing"]))
    if install := install_missing(lacking, cpu_only):
        outcome.next.insert(0, install)
    lines = [
        f"{'ready  ' if state['ready'] else 'missing'}  {work}" + (f": {state['install']}" if state["install"] else "")
        for work, state in table.items()
    ]
    return [*lines, "", "versions  " + ", ".join(f"{name} {text}" for name, text in found.items())]


if __name__ == "__main__":
    sys.exit(cli.main("doctor.py", __doc__, add_arguments, run))
