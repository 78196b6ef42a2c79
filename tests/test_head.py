"""The head of the TRL engine: log-probabilities of the trained tokens, equal to those of plain logits, and no logits of all."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from gemma_trainer.models.tiny import make_model, make_tokenizer
from gemma_trainer.train import head
from gemma_trainer.train.head import IGNORED, add_head
from test_dpo import build_dpo
from training import build, make_plan, make_tiny, pair_rows, question_rows

KINDS = ["gemma2", "gemma3", "gemma3n", "gemma4", "gemma3-vision", "gemma4-vision"]


class Largest(TorchDispatchMode):
    """The most elements of a tensor that an operation made, parameters and their gradients aside."""

    def __init__(self, model):
        super().__init__()
        self.known = {p.numel() for p in model.parameters()}
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(each, torch.Tensor) and each.numel() not in self.known:
                self.elements = max(self.elements, each.numel())
        return made


def model_of(kind: str, tied: bool = True, **sizes):
    family = "gemma3" if kind == "gemma2" else kind.removesuffix("-vision")
    tokenizer = make_tokenizer([str(row) for row in question_rows(64)], family)
    torch.manual_seed(0)
    if kind == "gemma2":
        from transformers import Gemma2Config, Gemma2ForCausalLM

        small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
        small |= {"num_key_value_heads": 1, "head_dim": 16, "final_logit_softcapping": 30.0, "pad_token_id": 0}
        config = Gemma2Config(vocab_size=len(tokenizer), attn_implementation="eager", **small)
        model = Gemma2ForCausalLM(config)
    else:
        model = make_model(kind, tokenizer, **sizes)
    if not tied:
        weight = model.get_output_embeddings().weight
        model.get_output_embeddings().weight = torch.nn.Parameter(torch.randn_like(weight) * weight.std())
    return model


def batch_of(words: int, rows: int = 3, length: int = 20) -> dict:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, min(words, 250), (rows, length), generator=generator)
    mask = torch.rand(rows, length, generator=generator) < 0.4
    mask[:, 0] = False
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.masked_fill(~mask, IGNORED)}


def gradients(model) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen head", "trained head"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_plain_logits(kind, tied, frozen, monkeypatch):
    model = model_of(kind, tied)
    words = model.get_output_embeddings().weight.shape[0]
    monkeypatch.setattr(head, "SCORES_AT_A_TIME", 5 * words)  # several slices, the last one smaller
    with torch.no_grad():  # so that the caps matter
        model.get_output_embeddings().weight *= 40
    model.get_output_embeddings().weight.requires_grad_(not frozen)
    batch = batch_of(words)
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].float()
    targets = batch["labels"][:, 1:]
    plain = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    plain.backward()
    expected = gradients(model)

    add_head(model)
    scores = model(**batch, scored=True)
    loss = -scores.logps.mean()
    loss.backward()
    assert loss.item() == pytest.approx(plain.item(), abs=1e-5)
    assert (scores.best == (logits.argmax(-1) == targets)[scores.trained]).all()
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, atol=1e-5 * float(gradient.abs().max().clamp(min=1))), name


def test_capped_model_is_capped():
    """The test above would hold for nothing if the tiny models had no caps."""
    for kind in ("gemma2", "gemma4", "gemma3n", "gemma4-vision"):
        assert model_of(kind).config.get_text_config().final_logit_softcapping == 30.0


def test_each_token_has_its_own_weight():
    """As in DPO, where every answer counts differently."""
    model = model_of("gemma4")
    batch, weights = batch_of(300), torch.tensor([1.0, -2.0, 0.5])
    logps = model(input_ids=batch["input_ids"]).logits[:, :-1].log_softmax(-1)
    targets = batch["labels"][:, 1:]
    chosen = logps.gather(2, targets.clamp(min=0)[..., None])[..., 0].where(targets != IGNORED, 0)
    (chosen.sum(1) * weights).sum().backward()
    expected = gradients(model)
    add_head(model)
    by_row = model(**batch, scored=True).by_row()
    assert torch.allclose(by_row, chosen.sum(1), atol=1e-4)
    (by_row * weights).sum().backward()
    for name, gradient in gradients(model).items():
        assert torch.allclose(gradient, expected[name], atol=1e-5 * float(expected[name].abs().max().clamp(min=1))), (
            name
        )


def test_masked_tokens_are_not_scored(monkeypatch):
    model = model_of("gemma3")
    add_head(model)
    scored = []
    real = head._score
    monkeypatch.setattr(head, "_score", lambda states, *rest: scored.append(len(states)) or real(states, *rest))
    batch = batch_of(300)
    model(**batch, scored=True).logps.sum().backward()
    trained = int((batch["labels"] != IGNORED).sum())
    assert sum(scored) == 2 * trained  # forward, and backward since the head is trained
    nothing = {**batch, "labels": torch.full_like(batch["labels"], IGNORED)}
    scores = model(**nothing, scored=True)
    scores.logps.sum().backward()
    assert len(scores.logps) == 0 and scores.by_row().tolist() == [0.0, 0.0, 0.0]


def test_bfloat16_is_as_exact_as_plain_logits():
    model = model_of("gemma4").bfloat16()
    model.get_output_embeddings().weight.requires_grad_(False)
    batch = batch_of(300)
    exact = model_of("gemma4")(input_ids=batch["input_ids"]).logits[:, :-1]
    plain = model(input_ids=batch["input_ids"]).logits[:, :-1]
    targets = batch["labels"][:, 1:]
    losses = [
        cross_entropy(each.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED) for each in (exact, plain)
    ]
    add_head(model)
    ours = -model(**batch, scored=True).logps.mean()
    assert abs(ours - losses[0]) <= abs(losses[1] - losses[0]) + 1e-3
    ours.backward()


def test_a_trained_head_under_autocast(monkeypatch):
    """Full fine-tuning of float32 weights that computes in bfloat16: as near to float32 as plain logits are."""
    monkeypatch.setattr(head, "SCORES_AT_A_TIME", 3000)
    monkeypatch.setattr(head, "WORDS_AT_A_TIME", 100)
    model, batch = model_of("gemma4"), batch_of(300)
    targets = batch["labels"][:, 1:].flatten()

    def plain():
        logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
        cross_entropy(logits.float().flatten(0, 1), targets, ignore_index=IGNORED, reduction="sum").backward()
        return gradients(model)

    exact = plain()
    with torch.autocast("cpu", torch.bfloat16):
        usual = plain()
    add_head(model)
    with torch.autocast("cpu", torch.bfloat16):
        loss = -model(**batch, scored=True).logps.sum()
    loss.backward()
    assert loss.dtype == torch.float32
    for name, gradient in gradients(model).items():
        assert gradient.dtype == torch.float32
        assert (gradient - exact[name]).norm() <= 1.2 * (usual[name] - exact[name]).norm() + 1e-4, name


@pytest.mark.main_path
@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_no_step_makes_logits_of_all_tokens(method, mode, tmp_path, monkeypatch):
    tiny = make_tiny(tmp_path / "model", num_hidden_layers=2, vocab_size=8192)
    monkeypatch.setattr(head, "SCORES_AT_A_TIME", 16 * 8192)
    if method == "sft":
        plan = make_plan(tiny.path, mode=mode, steps=1)
        trainer, _ = build(tiny, plan, tmp_path / "out", tiny.encode(question_rows(8)))
    else:
        trainer, _ = build_dpo(tiny, tmp_path / "out", tiny.encode_pairs(pair_rows(8)), mode=mode, steps=1)
    batch = next(iter(trainer.get_train_dataloader()))
    tokens = int(batch["attention_mask"].sum())
    assert tokens > 2 * 64
    with Largest(trainer.model) as seen:
        trainer.compute_loss(trainer.model, batch).backward()
    assert 16 * 8192 // 2 <= seen.elements <= 16 * 8192 < tokens * 8192 // 4
