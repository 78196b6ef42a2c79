"""The number of requests in flight follows the server."""

import asyncio
import random

import pytest

from gemma_trainer.distill.pacing import START, Pacer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def serve(pacer: Pacer, clock: Clock, rounds: int, outcome) -> list[int]:
    """Rounds of a second each, in which every place is taken; gives the number in flight of each round.

    `outcome(n)` says (latency, pushed back) of the n-th request of a round.
    """

    async def story() -> list[int]:
        seen = []
        for _ in range(rounds):
            entered, started = clock.now, int(pacer.limit)
            seen.append(started)
            for _ in range(started):
                await pacer.enter()
            for n in range(started):
                latency, pushed_back = outcome(n)
                clock.now = entered + latency
                pacer.leave(entered, not pushed_back, pushed_back)
            clock.now = entered + 1.0
        return seen

    return asyncio.run(story())


def test_it_doubles_up_to_the_most_and_no_further():
    clock = Clock()
    seen = serve(Pacer(100, clock), clock, 5, lambda n: (0.5, False))
    assert seen == [START, 2 * START, 4 * START, 100, 100]


def test_it_settles_near_what_the_server_takes():
    clock = Clock()
    seen = serve(Pacer(500, clock), clock, 60, lambda n: (0.5, n >= 40))  # 40 slots, the others get 429
    assert max(seen[10:]) <= 60 and sum(seen[10:]) / 50 > 25


def test_it_halves_once_for_a_round_of_pushes():
    clock = Clock()
    pacer = Pacer(64, clock)
    serve(pacer, clock, 4, lambda n: (0.5, False))
    assert pacer.limit == 64
    serve(pacer, clock, 1, lambda n: (0.5, True))
    assert pacer.limit == 32


def test_single_pushes_are_an_accident():
    clock, chance = Clock(), random.Random(0)
    seen = serve(Pacer(64, clock), clock, 200, lambda n: (0.5, chance.random() < 0.02))
    assert sum(seen) / len(seen) > 40


def test_it_adds_no_more_when_answers_take_much_longer():
    clock = Clock()
    pacer = Pacer(1000, clock)
    seen = serve(pacer, clock, 40, lambda n: (0.1 * max(1, pacer.limit / 32), False))  # 32 slots and a queue
    assert 64 < seen[-1] < 200


def run(story) -> None:
    asyncio.run(asyncio.wait_for(story, 10))


def test_it_adds_no_more_than_is_wanted():
    async def story():
        clock = Clock()
        pacer = Pacer(64, clock)
        for _ in range(100):  # one at a time
            entered = await pacer.enter()
            clock.now += 0.1
            pacer.leave(entered, True)
        assert pacer.limit == START

    run(story())


def test_waiting_requests_go_in_order_and_a_pause_holds_all():
    async def story():
        pacer, order = Pacer(1), []

        async def one(name):
            entered = await pacer.enter()
            order.append(name)
            await asyncio.sleep(0)
            pacer.leave(entered, True)

        await asyncio.gather(*map(one, "abc"))
        assert order == ["a", "b", "c"]
        entered = await pacer.enter()
        pacer.leave(entered, False, pause=0.1)
        started = asyncio.get_running_loop().time()
        pacer.leave(await pacer.enter(), True)
        assert asyncio.get_running_loop().time() - started >= 0.09

    run(story())


@pytest.mark.parametrize("woken_first", [True, False])
def test_a_cancelled_request_passes_its_place_on(woken_first):
    async def story():
        pacer = Pacer(1)
        entered = await pacer.enter()
        first, second = (asyncio.create_task(pacer.enter()) for _ in range(2))
        await asyncio.sleep(0)
        if woken_first:
            pacer.leave(entered, True)
            first.cancel()
        else:
            first.cancel()
            pacer.leave(entered, True)
        await second
        assert pacer.in_flight == 1

    run(story())
