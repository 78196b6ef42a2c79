"""What the planner chooses, and what it offers when nothing fits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gemma_trainer.families.checkpoints import CHECKPOINTS
from gemma_trainer.plan.choices import USABLE, Wishes, budget_of, longest, settings_for
from gemma_trainer.plan.emulate import emulate, smallest_card
from gemma_trainer.plan.fit import Fit, fit, misfit, require_fit
from gemma_trainer.plan.memory import GIB, estimate
from gemma_trainer.plan.processes import choose_processes, shared_memory
from gemma_trainer.plan.size import released, size_of
from gemma_trainer.rows.problems import Failure


def planned(model: str, hardware: str, devices: int = 1, **wishes) -> Fit:
    return fit(size_of(model), emulate(hardware), Wishes(**wishes), devices)


@pytest.mark.parametrize(
    ("model", "hardware", "wishes", "mode", "dtype"),
    [
        ("google/gemma-4-12B-it", "1xRTX4090-24G", {}, "qlora", "bfloat16"),
        ("google/gemma-4-31B-it", "1xRTX4090-24G", {}, "qlora", "bfloat16"),
        ("google/gemma-4-26B-A4B-it", "1xH100-80G", {}, "qlora", "bfloat16"),
        ("google/gemma-3-270m-it", "1xT4", {}, "qlora", "float32"),
        ("google/gemma-3-1b-it", "mps-32G", {}, "lora", "bfloat16"),
        ("google/gemma-3-270m-it", "cpu-16G", {}, "lora", "float32"),
        ("google/gemma-3-4b-it", "cpu-16G", {}, "lora", "bfloat16"),
        ("google/gemma-4-12B-it", "cpu-32G", {}, "lora", "bfloat16"),
        ("google/gemma-4-12B-it", "cpu-16G", {}, "qlora", "float32"),
        ("google/gemma-3-1b-it", "1xA100-80G", {"mode": "full"}, "full", "float32"),
        ("google/gemma-3-4b-it", "1xA100-80G", {"mode": "lora", "method": "dpo"}, "lora", "bfloat16"),
    ],
)
def test_choices_that_fit(model, hardware, wishes, mode, dtype):
    found = planned(model, hardware, **wishes)
    assert found.fits and found.ways == []
    assert (found.settings.mode, found.settings.dtype) == (mode, dtype)
    assert found.longest >= found.settings.length


def test_a_later_choice_tells_what_the_first_would_have_taken():
    assert re.fullmatch(
        r"lora in float32 would take \d+\.\d GiB", planned("google/gemma-4-12B-it", "cpu-16G").why["mode"]
    )
    assert "lora in float32 would take" in planned("google/gemma-3-4b-it", "cpu-16G").why["dtype"]
    assert planned("google/gemma-3-1b-it", "1xT4", mode="lora").why["mode"] == "asked for"
    assert all("\n" not in line and line for line in planned("google/gemma-4-26B-A4B-it", "1xH100-80G").why.values())


def test_what_logits_take_is_told():
    found = planned("google/gemma-3-1b-it", "1xA100-80G", length=2048, micro=4, mode="lora")
    sliced, full = map(float, re.search(r"([\d.]+) GiB instead of ([\d.]+)$", found.why["logits"]).groups())
    assert sliced < 0.05 * full and full == pytest.approx(24, abs=0.1)
    assert "Unsloth" in planned("google/gemma-3-1b-it", "1xA100-80G", backend="unsloth").why["logits"]
    assert "logits" not in planned("google/gemma-3-1b-it", "1xA100-80G", method="rm").why


def test_the_micro_batch_grows_with_the_memory_and_divides_the_batch():
    small, large = (planned("google/gemma-4-12B-it", card, length=1024) for card in ("RTX3060", "1xA100-80G"))
    assert small.settings.micro < large.settings.micro == 8  # 8 x 1,024 tokens are enough to keep a GPU busy
    for found in (small, large):
        plan = found.as_dict()
        assert plan["micro_batch_size"] * plan["accumulation_steps"] == 16 and found.fits
    assert planned("google/gemma-4-12B-it", "1xA100-80G", micro=2).settings.micro == 2
    assert planned("google/gemma-3-270m-it", "1xA100-80G", length=64, effective=12).settings.micro == 12


@pytest.mark.parametrize(
    ("model", "hardware", "wishes", "change"),
    [
        ("google/gemma-4-26B-A4B-it", "1xRTX4090-24G", {}, "--model google/gemma-4-12B-it"),
        ("google/gemma-4-12B-it", "1xA100-80G", {"mode": "full"}, "--mode lora"),
        ("google/gemma-4-12B-it", "1xRTX4090-24G", {"length": 65536}, "--max-length "),
        ("google/gemma-3-4b-it", "1xT4", {"mode": "lora", "micro": 8}, "--micro-batch-size 1"),
        ("google/gemma-3-1b-it", "A10G", {"mode": "full", "method": "dpo", "length": 2048}, "--precompute-ref"),
        ("google/gemma-3-4b-it", "cpu-16G", {"mode": "lora", "dtype": "float32"}, "--dtype bfloat16"),
        ("google/gemma-4-31B-it", "cpu-8G", {}, "GiB of main memory"),
    ],
)
def test_three_ways_when_it_does_not_fit(model, hardware, wishes, change):
    found = planned(model, hardware, **wishes)
    assert not found.fits and 1 <= len(found.ways) <= 3
    assert any(change in way.change for way in found.ways), found.ways
    assert len({way.change for way in found.ways}) == len(found.ways)
    for way in found.ways:
        if way.change.startswith("--"):
            assert way.gib <= found.budget / GIB
        assert way.cost


def test_a_way_does_what_it_says():
    """The figure of a way is that of the run it describes."""
    found = planned("google/gemma-4-12B-it", "1xRTX4090-24G", length=65536)
    way = next(way for way in found.ways if way.change.startswith("--max-length"))
    shorter = planned("google/gemma-4-12B-it", "1xRTX4090-24G", length=int(way.change.split()[1]), micro=1)
    assert shorter.fits and shorter.estimate.total / GIB == pytest.approx(way.gib)
    card = next(way for way in found.ways if way.change.startswith("one "))
    assert planned("google/gemma-4-12B-it", card.change.removeprefix("one "), length=65536).fits


@pytest.mark.parametrize(
    ("model", "hardware", "wishes"),
    [
        ("google/gemma-4-26B-A4B-it", "2xRTX4090-24G", {}),
        ("google/gemma-3-27b-it", "8xRTX4090-24G", {"mode": "full", "length": 8192}),
        ("google/gemma-4-31B-it", "2x8xT4", {"method": "dpo"}),
        ("google/gemma-4-E4B-it", "RTX4080-16G", {"micro": 16, "length": 8192}),
        ("google/gemma-4-12B-it", "cpu-8G", {"micro": 4}),
    ],
)
def test_models_and_cards_that_are_named_fit(model, hardware, wishes):
    """A card alone, and a smaller model with the batch that is asked for."""
    devices = emulate(hardware).devices
    found = planned(model, hardware, devices, **wishes)
    named = [way.change for way in found.ways if way.change.startswith(("one ", "--model "))]
    assert not found.fits and named
    for change in named:
        kind, name = change.split(" ", 1)
        other = planned(model, name, **wishes) if kind == "one" else planned(name, hardware, devices, **wishes)
        assert other.fits, change


def test_a_run_that_does_not_fit_is_refused_with_the_ways():
    model = size_of("google/gemma-4-26B-A4B-it")
    with pytest.raises(Failure) as caught:
        require_fit(fit(model, emulate("RTX4090"), Wishes()))
    assert (caught.value.exit_code, caught.value.problem.code) == (5, "does-not-fit")
    assert "--model google/gemma-4-12B-it" in caught.value.problem.fix
    require_fit(fit(model, emulate("1xH100-80G"), Wishes()))


@pytest.mark.parametrize("hardware", ["1xRTX4090-24G", "T4", "cpu-64G", "mps-64G"])
def test_the_longest_text_is_the_longest(hardware):
    model, machine = size_of("google/gemma-3-4b-it"), emulate(hardware)
    settings = settings_for(model, machine, Wishes(), "lora")
    tokens, budget = longest(model, settings, budget_of(machine)), budget_of(machine)
    if tokens:
        fits = [
            fit(model, machine, Wishes(mode="lora", dtype=settings.dtype, length=n, micro=1)).fits
            for n in (tokens, tokens + 256)
        ]
        assert fits == [True, tokens >= model.shape.context]
    else:
        assert estimate(model, settings).total > budget


def test_several_devices_copy_the_model_before_they_split_it():
    small, large = (
        planned("google/gemma-3-4b-it", "8xH100-80G", 8),
        planned("google/gemma-3-27b-it", "8xH100-80G", 8, mode="full"),
    )
    assert (small.settings.parallel, large.settings.parallel) == ("ddp", "fsdp") and small.fits and large.fits
    assert "copy" in small.why["parallel"] and "split" in large.why["parallel"]
    two_nodes = planned("google/gemma-3-27b-it", "2x8xH100-80G", 16, mode="full", effective=32)
    assert two_nodes.settings.ranks == 16 and two_nodes.estimate.total < large.estimate.total
    plan = two_nodes.as_dict()
    assert plan["micro_batch_size"] * plan["accumulation_steps"] * 16 == 32


def test_every_released_model_is_answered_on_every_kind_of_hardware():
    for hardware in ("1xRTX4090-24G", "8xA100-40G", "cpu-16G", "mps-16G"):
        machine = emulate(hardware)
        for checkpoint in CHECKPOINTS:
            for method in ("sft", "dpo", "rm"):
                found = fit(released(checkpoint), machine, Wishes(method=method))
                assert found.fits or found.ways, (checkpoint.name, hardware)
                assert found.fits == (found.estimate.total <= USABLE[machine.kind] * machine.device_gib * GIB)


# What the pages say is what the planner does

ROOT = Path(__file__).parents[1]


def table_under(heading: str, page: str) -> list[list[str]]:
    """Cells of the first table behind a heading, without its first two lines."""
    lines = (ROOT / page).read_text("utf-8").split(f"## {heading}", 1)[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:]


def test_the_decision_table_of_the_skill():
    """Of a model that fits in any way."""
    machines = {
        "one NVIDIA GPU": "1xRTX4090-24G",
        "several NVIDIA GPUs": "8xH100-80G",
        "Apple GPU": "mps-32G",
        "CPU only": "cpu-32G",
    }
    rows = table_under("Choose", "SKILL.md")
    assert {row[0] for row in rows} == set(machines)
    for machine, default, *_ in rows:
        hardware = emulate(machines[machine])
        processes, _ = choose_processes(None, Wishes().effective, hardware, None)
        settings = planned("google/gemma-3-270m-it", machines[machine], processes).settings
        assert ("one process on each" in default) == (settings.ranks == processes > 1), machine
        assert default.lower().startswith(settings.mode), machine
        named = [dtype for dtype in ("bfloat16", "float32") if dtype in default]
        assert named in ([], [settings.dtype])
    assert planned("google/gemma-3-270m-it", "8xH100-80G", 8).settings.parallel == "ddp"  # copied
    assert planned("google/gemma-4-31B-it", "8xH100-80G", 8, mode="full").settings.parallel == "fsdp"  # no copy fits


def test_the_figures_of_the_hardware_page():
    rows = [
        row for row in table_under("What fits", "references/hardware.md") if row[0] in {c.name for c in CHECKPOINTS}
    ]
    assert len(rows) == len(CHECKPOINTS)
    machine = emulate("1xH200-141G")
    for name, *figures, cards in rows:
        for mode, figure, card in zip(("qlora", "lora", "full"), figures, cards.split(", "), strict=True):
            model = size_of(name)
            total = estimate(model, settings_for(model, machine, Wishes(), mode)).total / GIB
            assert float(figure) == pytest.approx(total, abs=0.51 if mode == "full" else 0.051), name
            assert card == (smallest_card(total / USABLE["cuda"]) or ("none",))[0]


def test_a_mode_that_nobody_asked_for_is_told_as_the_smallest():
    model, hardware = "google/gemma-4-31B-it", "cpu-16G"
    assert "even in qlora, the smallest mode, at" in misfit(planned(model, hardware)).message
    assert "-it in lora at" in misfit(planned(model, hardware, mode="lora")).message


@pytest.mark.parametrize("model", ["google/gemma-2-9b-it", "google/gemma-3-27b-it", "google/gemma-3-1b-it"])
@pytest.mark.parametrize("length", [16_384, 131_072])
def test_no_way_goes_beyond_what_a_model_was_made_for(model, length):
    contexts = {released(each).name: each.shape.context for each in CHECKPOINTS}
    for hardware in ("1xH100-80G", "1xRTX3060-12G", "cpu-32G"):
        found = planned(model, hardware, length=length, micro=8)
        for way in found.ways:
            words = f"{way.change} ".split(" ")
            named = words[words.index("--model") + 1] if "--model" in words else found.model.name
            asked = int(words[words.index("--max-length") + 1]) if "--max-length" in words else length
            assert asked <= contexts[named] or (named == found.model.name and "--max-length" not in words)


def test_a_smaller_model_is_combined_with_one_row_a_pass():
    found = planned("google/gemma-3-27b-it", "1xRTX3060-12G", method="dpo", mode="qlora", length=16_384, micro=8)
    model, more = re.fullmatch(r"--model (\S+) (.*)", found.ways[0].change).groups()
    assert more == "--micro-batch-size 1"
    assert planned(model, "1xRTX3060-12G", method="dpo", mode="qlora", length=16_384, micro=1).fits


def test_fewer_processes_where_they_share_the_memory():
    machine = emulate("cpu-24G")
    shared = shared_memory(machine, 32, None)
    found = fit(size_of("google/gemma-3-270m-it"), shared, Wishes(effective=32, length=256), 32)
    assert not found.fits and "--processes 1" in [way.change for way in found.ways]
    assert planned("google/gemma-3-270m-it", "cpu-24G", effective=32, length=256).fits
    assert not any("main memory" in way.change for way in found.ways)


def test_reasons_are_those_of_the_choice():
    asked = [planned("google/gemma-4-31B-it", "8xH100-80G", 8, mode="full", parallel=each) for each in ("ddp", "fsdp")]
    assert [found.why["parallel"] for found in asked] == ["asked for", "asked for"] and not asked[0].fits
    prime = planned("google/gemma-3-1b-it", "1xH100-80G", effective=13, length=1000)
    assert prime.settings.micro == 1 and prime.why["batch"].endswith("no other number up to 8 divides 13 rows")
    full = planned("google/gemma-3-1b-it", "1xH100-80G", effective=16, length=1000)
    assert full.settings.micro == 8 and full.why["batch"].endswith("more would be no faster")


def test_a_huge_batch_is_planned_at_once():
    assert planned("google/gemma-3-1b-it", "1xH100-80G", effective=10**15).settings.micro == 4
