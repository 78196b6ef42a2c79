"""Rows packed into sequences of one length, and how much of a run's passes is padding; counted before torch is imported."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Sequence

SAMPLE = 20_000  # rows by which the padding of an epoch is guessed


def pack(lengths: Sequence[int], max_length: int) -> list[list[int]]:
    """Row numbers of each sequence, best fit decreasing: every row goes whole into the fullest sequence that has room for
    it. A row over `max_length` has one of its own."""
    sequences: list[list[int]] = []
    with_room: dict[int, list[list[int]]] = {}  # free tokens to sequences
    rooms: list[int] = []  # keys of `with_room`, ascending
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        at = bisect_left(rooms, lengths[row])
        if at == len(rooms):
            sequence, room = [], max_length
            sequences.append(sequence)
        else:
            room = rooms[at]
            sequence = with_room[room].pop()
            if not with_room[room]:
                del with_room[room], rooms[at]
        sequence.append(row)
        if (left := room - lengths[row]) > 0:
            if left not in with_room:
                insort(rooms, left)
            with_room.setdefault(left, []).append(sequence)
    return sequences


def packed_lengths(lengths: Sequence[int], max_length: int) -> list[int]:
    """Tokens of each sequence that `pack` makes."""
    return [sum(lengths[row] for row in sequence) for sequence in pack(lengths, max_length)]


def padding(lengths: Sequence[int], micro: int, step: int, seed: int) -> float:
    """Share of an epoch's tokens that are padding, about: rows of a step come by chance and are cut by length into micro
    batches, as in batches.py, which draws others."""
    drawn = random.Random(seed).sample(lengths, min(len(lengths), SAMPLE))
    steps = (sorted(drawn[at : at + step], reverse=True) for at in range(0, len(drawn), step))
    passes = [rows[at : at + micro] for rows in steps for at in range(0, len(rows), micro)]
    return 1 - sum(drawn) / sum(rows[0] * len(rows) for rows in passes)


def packing_facts(lengths: Sequence[int], sequences: Sequence[int], tokens: int, step: int, seed: int) -> dict:
    """What a plan says of its data: how many packed sequences they make, and the share of padding in passes of `tokens`
    tokens, packed or not."""
    padded = {
        name: round(padding(each, max(1, tokens // max(each)), step, seed), 4)
        for name, each in (("rows", lengths), ("packed", sequences))
    }
    return {"sequences": len(sequences), "padding": padded}


def why_packing(packing: bool, rows: int, facts: dict, step: int) -> str:
    """A line for the plan."""
    unpacked, packed = (f"{facts['padding'][name]:.0%}" for name in ("rows", "packed"))
    made = f"{rows} rows make {facts['sequences']} packed sequences"
    if not packing:
        return f"not asked for: about {unpacked} of a pass is padding; {made}, with {packed}"
    each = rows / facts["sequences"]
    return f"asked for: {made}, a step takes {step}, about {min(step * each, rows):.0f} rows; {packed} padding instead of {unpacked}"
