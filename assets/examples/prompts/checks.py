"""A verifier for distill_dataset.py: --verifier assets/examples/prompts/checks.py:short_and_ended"""


def short_and_ended(answer: str, row: dict) -> bool:
    """At most 120 words, and the last sentence or block of code is closed. `row` is the prompt row with all its columns."""
    return len(answer.split()) <= 120 and answer.rstrip().endswith((".", "!", "?", ")", '"', "`", ":"))
