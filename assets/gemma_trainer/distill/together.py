"""Several requests of one item at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from gemma_trainer.distill.work import RequestFailed

T = TypeVar("T")


async def together(*works: Awaitable[T]) -> list[T]:
    """What came of those that got their answers. Raises RequestFailed when none did."""
    if len(works) == 1:
        return [await works[0]]
    found = await asyncio.gather(*works, return_exceptions=True)
    errors = [one for one in found if isinstance(one, BaseException)]
    for error in errors:
        if not isinstance(error, RequestFailed):
            raise error
    if errors and len(errors) == len(found):
        raise errors[0]
    return [one for one in found if not isinstance(one, BaseException)]
