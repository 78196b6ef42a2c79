"""Greedy answers and teacher-forced loss of one model on held-out rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gemma_trainer.data.encode import Encoded, RowTokenizer
from gemma_trainer.data.render import Renderer

MARGIN = 16  # tokens an answer may run over the longest target before it is cut


@dataclass(frozen=True)
class Task:
    """One held-out row: what the model reads, what it should say, and the row's ids with the loss on that answer."""

    prompt_ids: list[int]
    answer: int  # index of the message that is the right answer
    target: str
    target_tokens: int
    encoded: Encoded


def make_task(row: dict, renderer: Renderer, tokenizer: RowTokenizer) -> Task | None:
    """The row's last assistant message as a task, None when the row has none. Raises RenderError."""
    messages = row["messages"]
    last = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=None)
    if last is None:
        return None
    row = {**row, "messages": messages[: last + 1]}
    rendered = renderer.render(row, loss_on="last")
    spans = [span for span in rendered.spans if span.message == last]
    answer = "".join(rendered.text[span.start : span.end] for span in spans)
    prompt = renderer.prompt({**row, "messages": messages[:last]})
    return Task(
        prompt_ids=tokenizer.backend.encode(prompt, add_special_tokens=False).ids,
        answer=last,
        target=strip_stops(answer, renderer.family.stop_tokens),
        target_tokens=tokenizer.count(answer),
        encoded=tokenizer.encode(rendered),
    )


def strip_stops(text: str, stops: Sequence[str]) -> str:
    """An answer up to the first stop token, without white space around it."""
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends, default=len(text))].strip()


def batches(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Indices in batches of about equal length, longest first, so that memory runs out at once or never."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    for start in range(0, len(order), size):
        yield order[start : start + size]


def left_pad(rows: Sequence[Sequence[int]], value: int, device) -> torch.Tensor:
    """[rows, longest]; on the left, so that the answers of all rows begin in the same column."""
    width = max(map(len, rows))
    return torch.tensor([[value] * (width - len(row)) + list(row) for row in rows], device=device)


@torch.inference_mode()
def generate(
    model, tokenizer: RowTokenizer, tasks: Sequence[Task], stops: Sequence[str], max_new_tokens: int, batch_size: int
) -> list[str]:
    """Greedy answers in the order of `tasks`, cut at the first stop token or after `max_new_tokens`."""
    from tqdm import tqdm

    stop_ids = [i for i in (tokenizer.backend.token_to_id(stop) for stop in stops) if i is not None]
    pad = tokenizer.backend.token_to_id("<pad>") or 0
    answers = [""] * len(tasks)
    model.eval()
    prompts = [task.prompt_ids for task in tasks]
    progress = tqdm(total=len(tasks), unit="answer", file=sys.stderr, disable=not sys.stderr.isatty())
    for indices in batches([len(p) for p in prompts], batch_size):
        ids = left_pad([prompts[i] for i in indices], pad, model.device)
        mask = left_pad([[1] * len(prompts[i]) for i in indices], 0, model.device)
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=False,
            top_k=None,
            top_p=None,
            temperature=None,
            max_new_tokens=max_new_tokens,
            eos_token_id=stop_ids,
            pad_token_id=pad,
        )
        for index, new in zip(indices, output[:, ids.shape[1] :].tolist(), strict=True):
            text = tokenizer.backend.decode(_until_stop(new, stop_ids), skip_special_tokens=False)
            answers[index] = text.strip()
        progress.update(len(indices))
    progress.close()
    return answers


def _until_stop(ids: list[int], stop_ids: list[int]) -> list[int]:
    ends = [at for at, token in enumerate(ids) if token in stop_ids]
    return ids[: ends[0]] if ends else ids


@torch.inference_mode()
def mean_loss(model, rows: Sequence[Encoded], pad: int, batch_size: int) -> float:
    """Negative log-likelihood per trained token over all rows, in nats.

    Logits are computed only for positions that some row of the batch trains: with Gemma's 262k vocabulary the logits
    of whole prompts would not fit.
    """
    model.eval()
    total, count = 0.0, 0
    for indices in batches([len(row.ids) for row in rows], batch_size):
        batch = [rows[i] for i in indices]
        ids = left_pad([row.ids for row in batch], pad, model.device)
        attention = left_pad([[1] * len(row.ids) for row in batch], 0, model.device)
        trained = left_pad([row.mask for row in batch], 0, model.device)
        keep = trained[:, 1:].any(dim=0).nonzero().squeeze(-1)
        # Left padding shifts positions, so they are counted from each row's first token.
        positions = (attention.cumsum(-1) - 1).clamp(min=0)
        logits = model(
            input_ids=ids, attention_mask=attention, position_ids=positions, use_cache=False, logits_to_keep=keep
        ).logits
        labels = ids[:, keep + 1].masked_fill(trained[:, keep + 1] == 0, -100)
        total += float(
            torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="sum")
        )
        count += int((labels != -100).sum())
    return total / max(count, 1)
