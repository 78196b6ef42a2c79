"""Load a Gemma for training or evaluation so that nothing is silently random, frozen or in the wrong place."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gemma_trainer.rows.problems import UNSUPPORTED, USAGE, Failure, is_out_of_memory

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

MISSING_KEYS = "Found missing adapter keys"  # how PEFT's warning begins
LINEARS = "q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj"
# Parts of multimodal checkpoints that text never reaches.
TOWERS = re.compile(r"(^|\.)(vision_tower|audio_tower|vision_model|multi_modal_projector|embed_vision|embed_audio)\.")


def quiet_libraries() -> None:
    """Keep the libraries' advice to developers, and bars where nobody watches, out of a run's messages."""
    import logging
    import sys

    import transformers

    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    for name in ("bitsandbytes", "bitsandbytes.backends.cpu.ops"):
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()


def load_model(
    reference: str,
    *,
    dtype: str,
    device: str,
    quantize: bool = False,
    split: bool = False,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """The causal language model in `reference` (folder or hub id), in `dtype` ("float32" or "bfloat16").

    `quantize` loads linear layers as 4-bit NF4 with double quantisation. What is to be `split` among GPUs waits in main
    memory, its 4-bit weights stored as `dtype`: FSDP splits no bytes. Raises Failure when files are missing or
    unreadable (exit 2) or when the checkpoint does not fill the model (exit 5): a multimodal checkpoint loaded
    through a text class would otherwise be a random model that trains without an error.
    """
    from transformers import AutoModelForCausalLM

    options = {"dtype": dtype, "device": device, "quantize": quantize, "split": split}
    options["trust_remote_code"] = trust_remote_code
    model = load_checkpoint(reference, lambda config: AutoModelForCausalLM, **options)
    # The multimodal classes say False, which turns the loss into a mean of micro-batch means: accumulation
    # and several ranks would then weigh short answers more than one large batch does.
    model.accepts_loss_kwargs = True
    return model


def load_checkpoint(
    reference: str,
    class_of: Callable[[PretrainedConfig], type],
    *,
    dtype: str,
    device: str,
    quantize: bool = False,
    split: bool = False,
    trust_remote_code: bool = False,
    new: frozenset[str] = frozenset(),
    **options,
) -> PreTrainedModel:
    """As `load_model`, through `class_of(config).from_pretrained` with `options`. Weights named in `new` may be missing."""
    from transformers import AutoConfig

    options |= {"dtype": dtype, "trust_remote_code": trust_remote_code, "output_loading_info": True}
    device = "cpu" if split else device
    if quantize:
        options["quantization_config"] = _nf4(dtype, dtype if split else "uint8")
        options["device_map"] = {"": device}
    try:
        config = AutoConfig.from_pretrained(reference, trust_remote_code=trust_remote_code)
        if config.model_type == "gemma2":
            options["attn_implementation"] = "eager"  # sdpa cannot soft-cap attention scores
        model, info = class_of(config).from_pretrained(reference, **options)
    except Exception as error:  # a damaged config or tensor file surfaces as anything
        if is_out_of_memory(error):
            raise
        raise Failure(USAGE, "model-unreadable", f"{reference} cannot be loaded: {_reason(error)}") from error
    check_loading(reference, {**info, "missing_keys": set(info["missing_keys"]) - new})
    if quantize:
        keep_gradients_on_cpu(model)
    else:
        model.to(device)
    return model


def load_tokenizer_files(reference: str, chat_template: str | None, trust_remote_code: bool = False):
    """The transformers tokenizer of a model, to be saved with the result. `chat_template` fills a missing one.

    Padding is `<pad>`, never `<eos>`: a padded `<eos>` would be masked, and with it the end of a text.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(reference, trust_remote_code=trust_remote_code)
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:
        tokenizer.pad_token = "<pad>"
    return tokenizer


def check_loading(reference: str, info: dict) -> None:
    """Raises Failure (exit 5) when weights of the model were not in the checkpoint and stayed random."""
    missing = sorted(info["missing_keys"])
    if missing:
        raise Failure(
            UNSUPPORTED,
            "weights-missing",
            f"{reference} lacks {len(missing)} weights of its own model class (first: {missing[0]}); "
            "they would stay random",
        )
    if info.get("mismatched_keys"):
        raise Failure(UNSUPPORTED, "weights-missing", f"{reference} holds weights of the wrong shape")


def _nf4(dtype: str, storage: str):
    import torch
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, dtype),
        bnb_4bit_quant_storage=getattr(torch, storage),
    )


def keep_gradients_on_cpu(model: PreTrainedModel) -> None:
    """Stop bitsandbytes from repacking 4-bit layers in place at the first evaluation on an AVX512-BF16 CPU.

    A repacked layer passes no gradient back, so training would go on with most adapters frozen.
    """
    import bitsandbytes

    for module in model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False


def lora_targets(model: PreTrainedModel) -> str:
    """A regex over module names: the seven linear layers of each language-model block, no vision or audio tower.

    A plain list of names would also match the towers of Gemma 3 (adapted without need) and Gemma 4 (PEFT refuses).
    """
    multimodal = any(".language_model." in f".{name}." for name, _ in model.named_modules())
    return rf".*language_model\..*\.({LINEARS})" if multimodal else rf".*\.({LINEARS})"


def freeze_towers(model: PreTrainedModel) -> int:
    """Freeze what text never reaches, and return the number of frozen parameters."""
    frozen = 0
    for name, parameter in model.named_parameters():
        if TOWERS.search(name):
            parameter.requires_grad_(False)
            frozen += parameter.numel()
    return frozen


def check_trainable(model: torch.nn.Module) -> tuple[int, int]:
    """(trainable, all) parameters. Raises Failure (exit 5) when nothing or a tower would be trained."""
    trainable = {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise Failure(UNSUPPORTED, "nothing-trainable", "no parameter of the model would be trained")
    tower = next((name for name in trainable if TOWERS.search(name)), None)
    if tower:
        raise Failure(UNSUPPORTED, "tower-trainable", f"text training would change {tower}")
    return sum(trainable.values()), sum(p.numel() for p in model.parameters())


def load_adapter(
    model: PreTrainedModel, adapter: str, trainable: bool = False, name: str = "default"
) -> torch.nn.Module:
    """The model with a saved PEFT adapter on it, as one more where it has some already.

    `trainable` must be said: PEFT loads adapters frozen by default.
    """
    from peft import PeftModel

    with adapter_errors(adapter):
        if isinstance(model, PeftModel):
            require_keys(adapter, model.load_adapter(adapter, name, is_trainable=trainable).missing_keys)
            return model
        return PeftModel.from_pretrained(model, adapter, name, is_trainable=trainable)


@contextmanager
def adapter_errors(adapter: str) -> Iterator[None]:
    """Loading an adapter: what PEFT raises, and what is missing, of which it only warns, is a Failure (exit 2)."""
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.filterwarnings("always", message=MISSING_KEYS)
            yield
    except Failure:
        raise
    except Exception as error:  # as above
        if is_out_of_memory(error):
            raise
        text = f"{adapter} does not load on this model: {_reason(error)}"
        raise Failure(USAGE, "adapter-unreadable", text) from error
    for each in told:
        text = str(each.message)
        if text.startswith(MISSING_KEYS):
            require_keys(adapter, re.findall(r"'([^']+)'", text))
        warnings.showwarning(each.message, each.category, each.filename, each.lineno)


def require_keys(adapter: str, missing: list[str]) -> None:
    if missing:
        text = f"{adapter} lacks {len(missing)} weights of its own layers (first: {missing[0]}); they would stay as new"
        raise Failure(USAGE, "adapter-unreadable", text)


def _reason(error: Exception) -> str:
    """The first line that says something: PyTorch names what does not fit below a heading."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[lines[0].endswith(":") and len(lines) > 1][:300]


def adapter_base(adapter: str | Path) -> str:
    """The base model that an adapter folder names. Raises Failure (exit 2) when it is no adapter folder."""
    path = Path(adapter) / "adapter_config.json"
    try:
        base = json.loads(path.read_text("utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base = None
    if not isinstance(base, str):
        text = f"{adapter} holds no readable adapter_config.json that names its base model"
        raise Failure(USAGE, "adapter-unreadable", text)
    return base


def set_stop_tokens(model: PreTrainedModel, stop_ids: list[int], pad_id: int) -> None:
    """Generation ends at any of Gemma's stop tokens; `<eos>` alone never comes after a chat turn."""
    model.generation_config.eos_token_id = stop_ids
    model.generation_config.pad_token_id = pad_id
