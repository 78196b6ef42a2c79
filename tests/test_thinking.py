"""Thinking and turn marks in the raw text of answers."""

import pytest

from gemma_trainer.distill.thinking import has_thinking_marks, split_thinking


@pytest.mark.parametrize(
    ("text", "content", "reasoning"),
    [
        ("Rye.", "Rye.", None),
        ("<think>\nhm\n</think>\n\nRye.", "Rye.", "hm"),
        ("<thinking>hm</thinking>Rye.", "Rye.", "hm"),
        ("<thought>hm</thought> Rye.", "Rye.", "hm"),
        ("<think>hm</think>\n    return x", "    return x", "hm"),
        ("  <THINK>hm</THINK>\nRye.", "Rye.", "hm"),
        ("<seed:think>hm</seed:think>Rye.", "Rye.", "hm"),
        ("<|channel>thought\nhm\n<channel|>Rye.<turn|>", "Rye.", "hm"),
        ("<|channel>thought\n<channel|>Rye.", "Rye.", None),
        ("<think>\n\n</think>\n\nRye.", "Rye.", None),
        ("<unused94>thought\nhm<unused95>Rye.", "Rye.", "hm"),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Rye.<|return|>",
            "Rye.",
            "hm",
        ),
        ("[THINK]hm[/THINK]Rye.</s>", "Rye.", "hm"),
        ("◁think▷hm◁/think▷Rye.", "Rye.", "hm"),
        ("<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Rye.<|END_RESPONSE|>", "Rye.", "hm"),
        ("hm, bread\n</think>\nRye.", "Rye.", "hm, bread"),  # the prompt had opened it
        ("hm<channel|>Rye.", "Rye.", "hm"),
        ("<think>a</think><think>b</think>Rye.", "Rye.", "a\n\nb"),
        ("<think>never done", "", "never done"),
        ("<|channel>thought\nnever done", "", "never done"),
        ("<|im_start|>assistant\nRye.<|im_end|>\n", "Rye.", None),
        ("<start_of_turn>model\nRye.<end_of_turn>", "Rye.", None),
        ("    return x", "    return x", None),  # indentation of code stays
        ("Close it with `</think>`.", "Close it with `</think>`.", None),
        ("```html\n</think>\n```", "```html\n</think>\n```", None),
        ("I think <b>rye</b>.", "I think <b>rye</b>.", None),
    ],
)
def test_content_and_reasoning(text, content, reasoning):
    assert split_thinking(text) == (content, reasoning)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Rye. <think>or wheat?</think> Yes, rye.", True),
        ("Rye.<channel|>", True),
        ("Write `<think>` in front.", False),
        ("```\n<think>x</think>\n```", False),
        ("I think so.", False),
    ],
)
def test_marks_that_are_left(text, left):
    assert has_thinking_marks(text) is left
