"""One row, learned by heart: catches broken masks, attention and key-value sharing of every architecture."""

import pytest

from gemma_trainer.evaluate.generate import generate, make_task, mean_loss
from training import build, make_plan, make_tiny

ROW = {
    "messages": [
        {"role": "user", "content": "List the name of all cities please"},
        {"role": "assistant", "content": "SELECT name FROM cities WHERE id > 7 ORDER BY name"},
    ]
}


@pytest.mark.slow
@pytest.mark.main_path
@pytest.mark.parametrize("kind", ["gemma3", "gemma3n", "gemma4", "gemma4-vision"])
def test_one_row_is_learned_and_given_back(kind, tmp_path):
    tiny = make_tiny(tmp_path / "model", kind)
    row = tiny.encode([ROW])
    plan = make_plan(
        tiny.path,
        family=tiny.renderer.family.name,
        steps=60,
        effective_batch_size=1,
        micro_batch_size=1,
        learning_rate=1e-2,
    )
    trainer, losses = build(tiny, plan, tmp_path / "run", row)
    trainer.train()

    task = make_task(ROW, tiny.renderer, tiny.tokenizer)
    assert mean_loss(trainer.model, row, 0, 1) < 0.05
    answer = generate(
        trainer.model, tiny.tokenizer, [task], tiny.renderer.family.stop_tokens, task.target_tokens + 8, 1
    )
    assert answer == [ROW["messages"][1]["content"]]
    assert losses.values[0] > 1
