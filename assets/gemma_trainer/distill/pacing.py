"""How many requests are in flight: more while the server keeps up, half as many when it pushes them back."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

START = 16  # requests in flight at first
SLOWER = 3.0  # times the best latency at which no more are added
WEIGHT = 0.1  # of a new latency in the running mean
TOLERATED = 0.1  # share of the last round that may be pushed back: single ones are an accident
ROUND = 32  # requests at least, over which that share is taken
NEAR = 0.8  # of the limit that was too much: from there on it grows slowly
SETTLED = 16  # latencies until the mean says something


class Pacer:
    """Additive increase, multiplicative decrease, as TCP does it. `most` is what is never exceeded.

    Far below what was too much before, the number doubles with each round of answers. `leave` tells how a request went.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic):
        self.most = most
        self.limit = float(min(START, most))
        self.in_flight = 0
        self.clock = clock
        self.latency = self.best = 0.0  # running mean and its lowest value, seconds
        self.pushed = 0.0  # share of requests that are pushed back, over about a round
        self._seen = 0
        self._too_much = float("inf")  # the limit at the last reduction
        self._reduced_at = self._paused_until = self._full_at = float("-inf")
        self._waiting: deque[asyncio.Future] = deque()

    async def enter(self) -> float:
        """Wait for a free place, take it, and give the time."""
        while self.in_flight >= int(self.limit) or self.clock() < self._paused_until:
            place = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if place.done() and not place.cancelled():
                    self._wake()  # it was ours and goes to the next
                raise
        self.in_flight += 1
        now = self.clock()
        if self.in_flight >= int(self.limit):
            self._full_at = now
        return now

    def leave(self, entered: float, answered: bool, pushed_back: bool = False, pause: float = 0.0) -> None:
        """Give the place back. `pause` seconds nothing more is sent, as a server's Retry-After asks."""
        self.in_flight -= 1
        self.pushed += (pushed_back - self.pushed) / max(ROUND, self.limit)
        if self.pushed > TOLERATED:
            self._reduce(entered)
        elif answered:
            self._grow(entered)
        if pause > 0:
            self._paused_until = max(self._paused_until, self.clock() + pause)
            asyncio.get_running_loop().call_later(pause, self._wake)
        self._wake()

    def _reduce(self, entered: float) -> None:
        """Once a round: those sent before the last reduction say nothing new."""
        if entered > self._reduced_at:
            self._too_much = self.limit
            self.limit, self.pushed = max(1.0, self.limit / 2), 0.0
            self._reduced_at = self.clock()

    def _grow(self, entered: float) -> None:
        latency = self.clock() - entered
        self._seen += 1
        self.latency += (latency - self.latency) * max(WEIGHT, 1 / self._seen)
        if self._seen >= SETTLED:
            self.best = min(self.best or self.latency, self.latency)
        was_full = self._full_at >= entered  # else nobody wants more
        if was_full and self.latency <= SLOWER * (self.best or self.latency):
            step = 1.0 if self.limit < NEAR * self._too_much else 1 / self.limit
            self.limit = min(self.most, self.limit + step)

    def _wake(self) -> None:
        if self.clock() < self._paused_until:
            return
        free = int(self.limit) - self.in_flight
        while free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                free -= 1
