"""How a batch is cut into micro-batches must not change what is learned."""

import pytest

from training import build, make_plan, make_tiny, question_rows


def curve(tiny, folder, micro: int, mode: str) -> list[float]:
    plan = make_plan(
        tiny.path, mode=mode, steps=5, effective_batch_size=8, micro_batch_size=micro, accumulation_steps=8 // micro
    )
    trainer, losses = build(tiny, plan, folder, tiny.encode(question_rows(40)))
    trainer.train()
    return losses.values


@pytest.mark.slow
@pytest.mark.main_path
@pytest.mark.parametrize("kind, mode", [("gemma3", "full"), ("gemma3-vision", "lora"), ("gemma4-vision", "lora")])
def test_one_by_eight_equals_eight_by_one(kind, mode, tmp_path):
    """The conditional-generation classes would average micro-batch means: `accepts_loss_kwargs` of stack facts."""
    tiny = make_tiny(tmp_path / "model", kind)
    whole, pieces = curve(tiny, tmp_path / "a", 8, mode), curve(tiny, tmp_path / "b", 1, mode)
    assert len(whole) == 5 and whole[0] > 1
    assert pieces == pytest.approx(whole, abs=1e-3)
