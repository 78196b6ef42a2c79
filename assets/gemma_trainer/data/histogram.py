"""Counts of whole numbers: percentiles, bars, and buckets that bound how many different numbers there are."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import ceil

_EXACT_BITS = 8  # numbers below 256 keep their value; larger ones keep their first 8 binary digits


def bucket(number: int) -> int:
    """The number with its lower digits cleared: at most 1/128 less, so that millions of sizes make few buckets."""
    shift = number.bit_length() - _EXACT_BITS
    return number if shift <= 0 else number >> shift << shift


def quantiles(counts: Mapping[int, int], shares: tuple[float, ...]) -> list[int]:
    """For each share of ascending `shares`, the number at that place of the sorted row; zeros without numbers."""
    total, seen, out = sum(counts.values()), 0, []
    left = list(shares)
    for number in sorted(counts):
        seen += counts[number]
        while left and min(total - 1, int(total * left[0])) < seen:
            out.append(number)
            left.pop(0)
    return out + [0] * len(left)


def above(counts: Mapping[int, int], limit: int) -> int:
    """How many numbers are larger than the limit."""
    return sum(count for number, count in counts.items() if number > limit)


def bars(counts: Mapping[int, int], most: int = 32, edge: int | None = None) -> list[list[int]]:
    """[first, last, count] of about `most` neighbouring ranges that hold every number.

    Few different numbers stand for themselves. Else ranges are equally wide up to the 99th percentile and one or
    two more take the rest, so that a single giant does not flatten the picture. No range crosses `edge`, unless
    that is narrower than a range.
    """
    if not counts:
        return []
    low, high = min(counts), max(counts)
    if high - low < most:
        return [[number, number, counts.get(number, 0)] for number in range(low, high + 1)]
    usual = quantiles(counts, (0.99,))[0]
    if edge and usual / most <= edge < usual * 4:
        usual = max(usual, edge)
        width = _dividing(edge, usual / most)
    else:
        width = _round_width(usual / most)
    ends = [0]
    while ends[-1] < usual:
        ends.append(max(ends[-1] + 1, round(width * len(ends))))
    ends += [edge] if edge and ends[-1] < edge < high else []
    ends += [max(high, ends[-1] + round(width))] if ends[-1] < high else []
    out = [[first + 1, last, 0] for first, last in pairwise(ends)]
    out[0][0] = min(low, out[0][0])
    at = 0
    for number in sorted(counts):
        while number > out[at][1]:
            at += 1
        out[at][2] += counts[number]
    return out


def _dividing(edge: int, width: float) -> float:
    """A width near `width` of which `edge` is a multiple, a whole number if there is one."""
    whole = next((step for step in range(ceil(width), int(2.5 * width) + 1) if edge % step == 0), None)
    return whole or edge / max(1, round(edge / width))


def _round_width(width: float) -> int:
    """The next of 1, 2, 4, 5, 8, 10, 16, 20, 32, ... that is at least `width`: such edges are easy to read."""
    power = 1
    while True:
        for step in (1, 2, 4, 5, 8):
            if power * step >= width:
                return power * step
        power *= 10
