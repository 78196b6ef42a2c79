"""Codes of the planner. Entries are (severity, cause, fix), see codes.py."""

from __future__ import annotations

from gemma_trainer.rows.data_codes import ERROR, WARNING, Entries

PLANNING: Entries = {
    "does-not-fit": (
        ERROR,
        "The run would need more memory than the hardware has.",
        "Take one of the ways that the result names, cheapest first.",
    ),
    "hardware-unknown": (
        ERROR,
        "--emulate names hardware that is not known.",
        "Write it as 1xRTX4090-24G, 2x8xA100-80G, cpu-16G, mps-32G or tpu-v5e-8.",
    ),
    "hardware-unsupported": (
        ERROR,
        "No script of the pack trains on this hardware.",
        "Use an NVIDIA GPU, an Apple GPU or a CPU.",
    ),
    "length-over-context": (
        WARNING,
        "--max-length is more than the model was made for.",
        "Give at most the model's context.",
    ),
    "tokens-guessed": (
        WARNING,
        "The model's tokenizer is not here, so a plan guesses from the text how many tokens its rows have.",
        "Download the model, or give a folder with its files, for exact figures. A run reads the real tokenizer.",
    ),
    "size-partly-known": (
        WARNING,
        "Part of the model's size is not known, so more memory may be taken than is predicted.",
        "Give a folder with the model's files.",
    ),
}
