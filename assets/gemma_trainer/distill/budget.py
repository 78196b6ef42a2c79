"""What a run may cost in requests, tokens and money, over all its restarts."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemma_trainer.distill.request import Reply, Usage

CHARACTERS = 4  # a token, where a server does not count


class BudgetSpent(Exception):
    """No request may be sent any more, as `flag` with its `limit` says."""

    def __init__(self, flag: str, limit: float):
        super().__init__(f"{flag} {limit:g} is spent")
        self.flag, self.limit = flag, limit


@dataclass
class Budget:
    """Prices are per million tokens. Tokens and cost may exceed their limits by what is in flight."""

    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    price_in: float = 0.0
    price_out: float = 0.0
    answered: int = 0
    in_flight: int = 0
    usage: Usage = field(default_factory=Usage)

    @property
    def tokens(self) -> int:
        return self.usage.prompt_tokens + self.usage.completion_tokens

    @property
    def cost(self) -> float:
        return self.price(self.usage.prompt_tokens, self.usage.completion_tokens)

    def price(self, prompt_tokens: float, completion_tokens: float) -> float:
        return (prompt_tokens * self.price_in + completion_tokens * self.price_out) / 1e6

    def take(self) -> None:
        """Count a request that is about to be sent. Raises BudgetSpent."""
        spent = (
            ("--max-requests", self.answered + self.in_flight, self.max_requests),
            ("--max-tokens", self.tokens, self.max_tokens),
            ("--max-cost", self.cost, self.max_cost),
        )
        for flag, used, limit in spent:
            if limit is not None and used >= limit:
                raise BudgetSpent(flag, limit)
        self.in_flight += 1

    def release(self) -> None:
        """A request that was counted has come back, with an answer or without."""
        self.in_flight -= 1

    def add(self, reply: Reply) -> None:
        """An answer, of this run or of one before it."""
        self.answered += 1
        told, has = reply.usage, self.usage
        written = told.completion_tokens or reply.size // CHARACTERS
        self.usage = Usage(
            has.prompt_tokens + told.prompt_tokens,
            has.completion_tokens + written,
            has.reasoning_tokens + told.reasoning_tokens,
        )
