"""Hardware that is asked about: what is taken, what is refused, and with which hint."""

from __future__ import annotations

import pytest

from gemma_trainer.plan.emulate import CARDS, TPUS, emulate, smallest_card
from gemma_trainer.rows.problems import Failure


@pytest.mark.parametrize(
    ("text", "kind", "nodes", "per_node", "gib"),
    [
        ("1xRTX4090-24G", "cuda", 1, 1, 24.0),
        ("8xH100-80G", "cuda", 1, 8, 79.6),
        ("2x8xA100-80G", "cuda", 2, 8, 80.0),
        ("cpu-16G", "cpu", 1, 0, 16.0),
        ("mps-32G", "mps", 1, 0, 32.0),
        ("tpu-v5e-8", "tpu", 1, 8, 16.0),
        ("tpu-v4-8", "tpu", 1, 4, 32.0),
        ("rtx4090", "cuda", 1, 1, 24.0),
        ("2xT4", "cuda", 1, 2, 15.0),
        (" 1xA100-40GiB ", "cuda", 1, 1, 40.0),
        ("RTX 4090", "cuda", 1, 1, 24.0),
    ],
)
def test_forms(text, kind, nodes, per_node, gib):
    hardware = emulate(text)
    assert (hardware.kind, hardware.nodes, len(hardware.gpus), hardware.device_gib) == (kind, nodes, per_node, gib)
    assert hardware.devices == nodes * max(1, per_node) and hardware.emulated
    assert "emulated" in str(hardware) and f"{gib:.0f} GiB" in str(hardware)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1xRTX4900-24G", "`RTX4090`"),
        ("8xH1OO-80G", "`H100`"),
        ("L40S-40G", "write L40S-48G"),
        ("1xA100", "A100-40G or A100-80G"),
        ("tpu-v5x-8", "`V5"),
        ("tpu-v4-7", "no size of TPU v4"),
        ("cpu", "cpu-16G"),
        ("mps", "mps-32G"),
        ("cpu-0G", "no memory"),
        ("0xT4", "counts no card"),
        ("1x1x1xT4", "1xRTX4090-24G"),
        ("2 x T4", "1xRTX4090-24G"),
        ("", "1xRTX4090-24G"),
        ("1xRTX4090-24G; rm -rf /", "1xRTX4090-24G"),
        ("99999999xT4", "1xRTX4090-24G"),
        ("tpu-v5e-0", "no size"),
    ],
)
def test_what_is_refused(text, hint):
    with pytest.raises(Failure) as caught:
        emulate(text)
    assert (caught.value.exit_code, caught.value.problem.code) == (2, "hardware-unknown")
    assert hint in caught.value.problem.message


def test_number_formats_follow_the_card():
    assert emulate("1xA100-80G").bfloat16 and emulate("RTX3060").bfloat16 and emulate("mps-32G").bfloat16
    assert not emulate("T4").bfloat16 and not emulate("1xV100-16G").bfloat16 and not emulate("cpu-16G").bfloat16


def test_every_card_in_the_table_is_taken():
    for name, (capability, sizes) in CARDS.items():
        for label, shown in sizes.items():
            gpu = emulate(f"{name}-{label}G").gpus[0]
            assert (
                gpu.compute_capability == capability
                and 0.9 * label < gpu.memory_gib <= label
                and gpu.memory_gib == shown
            )
    assert all(emulate(f"tpu-{name.lower()}-8").kind == "tpu" for name in TPUS)


def test_a_larger_card_is_the_smallest_that_is_enough():
    assert smallest_card(23) == ("RTX4090-24G", 24.0)
    assert smallest_card(46) == ("H100-80G", 79.6)
    assert smallest_card(1000) is None
    assert all(emulate(smallest_card(gib)[0]).device_gib >= gib for gib in range(1, 170, 7))
