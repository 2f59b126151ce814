"""Models that nobody here wrote, tiny and random: of transformers, of torchvision, of PyTorch's own tests.

Nothing is downloaded. Modules are looked up by name at run time, so that type checkers need none of them.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before the first import of transformers

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

transformers: Any = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
pytest.importorskip("expecttest")  # of torch.testing._internal
if "+cpu" in torch.__version__ and not hasattr(torch.ops.torchvision, "nms"):
    # PyPI's torchvision needs libraries of CUDA for its own operators, and refuses to be imported without these two
    OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
resnet: Any = pytest.importorskip("torchvision.models.resnet")
with warnings.catch_warnings():  # that its own tests would like another package, which models do not need
    warnings.simplefilter("ignore")
    common_fsdp: Any = importlib.import_module("torch.testing._internal.common_fsdp")
    common_dtensor: Any = importlib.import_module("torch.testing._internal.distributed._tensor.common_dtensor")

Batch = dict[str, Tensor]
"""Named arguments of the model; row i of each belongs to sample i."""
VOCABULARY, SEQ = 37, 6


@dataclass(frozen=True)
class Foreign:
    """A model, with batches and a loss that is a mean over equal rows.

    Attributes:
        make: builds it.
        batch: (random numbers, rows) → arguments.
        loss: (what the model returned, its arguments) → the loss.
        units: of `Zero3`; None for the children of all ModuleLists.
    """

    make: Callable[[], nn.Module]
    batch: Callable[[torch.Generator, int], Batch]
    loss: Callable[[Any, Batch], Tensor]
    units: Callable[[Any], list[nn.Module] | None] = lambda module: None

    def model(self, seed: int, dtype: torch.dtype = torch.float32) -> nn.Module:
        """A model in training mode whose weights `seed` names."""
        torch.manual_seed(seed)
        return self.make().to(dtype)

    def batch_of(self, step: int, rows: int, dtype: torch.dtype = torch.float32) -> Batch:
        """The whole batch of a step, of all ranks together."""
        batch = self.batch(torch.Generator().manual_seed(1000 + step), rows)
        return {name: t.to(dtype) if t.is_floating_point() else t for name, t in batch.items()}


def _of_transformers(family: str, task: str, **settings: Any) -> Callable[[], nn.Module]:
    """Build a model of transformers, as in `GPT2` and `LMHeadModel`, from its config."""
    config, model = (getattr(transformers, f"{family}{kind}") for kind in ("Config", task))
    return lambda: model(config(**settings)).train()


def _tokens(generator: torch.Generator, rows: int) -> Tensor:
    return torch.randint(1, VOCABULARY, (rows, SEQ), generator=generator)


def _causal(generator: torch.Generator, rows: int) -> Batch:
    tokens = _tokens(generator, rows)
    return {"input_ids": tokens, "labels": tokens}


def _translated(generator: torch.Generator, rows: int) -> Batch:
    return {"input_ids": _tokens(generator, rows), "labels": _tokens(generator, rows)}


def _pictures(generator: torch.Generator, rows: int) -> Batch:
    pixels = torch.randn(rows, 3, 8, 8, generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(4, (rows,), generator=generator)}


def _pairs(generator: torch.Generator, rows: int) -> Batch:
    return {"input_ids": _tokens(generator, rows), "pixel_values": torch.randn(rows, 3, 8, 8, generator=generator)}


def _columns(generator: torch.Generator, rows: int) -> Batch:
    return {name: torch.randint(23, (rows, n), generator=generator) for name, n in (("source", 5), ("target", 4))}


def _numbers(*shape: int) -> Callable[[torch.Generator, int], Batch]:
    return lambda generator, rows: {"x": torch.randn(rows, *shape, generator=generator)}


def _words(generator: torch.Generator, rows: int) -> Batch:
    return {"tokens": _tokens(generator, rows)}


def _its_own(output: Any, _: Batch) -> Tensor:
    return output.loss


def _distance(output: Any, _: Batch) -> Tensor:
    """CLIP's own loss compares each row with all others, so it is no mean over rows."""
    return (output.text_embeds - output.image_embeds).square().mean()


def _targets(output: Any, batch: Batch) -> Tensor:
    (inputs,) = (tensor for name, tensor in batch.items() if name in ("x", "tokens"))
    classes = inputs.flatten(1).sum(1).abs().long() % output.shape[-1]
    return nn.functional.cross_entropy(output.flatten(1, -2).mean(1) if output.ndim > 2 else output, classes)


def _squares(output: Any, _: Batch) -> Tensor:
    return output.square().mean()


def _front_of_resnet() -> nn.Module:
    """ResNet's first half: the other has 20 times the weights, and sees a few pictures through a pixel each."""
    made = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1])
    made.layer3, made.layer4, made.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 4)
    return made


class Columns(nn.Module):
    """PyTorch's transformer with shared weights, whose rows are columns."""

    def __init__(self) -> None:
        super().__init__()
        never, deterministic = common_fsdp.DEVICEInitMode.DEVICE_NEVER, True
        self.inner = common_fsdp.TransformerWithSharedParams(dist.group.WORLD, never, False, deterministic)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores, rows first."""
        return self.inner(source.t(), target.t()).transpose(0, 1)


def _nested() -> nn.Module:
    never = common_fsdp.DEVICEInitMode.DEVICE_NEVER
    return common_fsdp.NestedWrappedModule(dist.group.WORLD, False, never, deterministic=True)


def _toy_transformer(**settings: Any) -> nn.Module:
    return common_dtensor.Transformer(common_dtensor.ModelArgs(vocab_size=VOCABULARY, dropout_p=0.0, **settings))


_WORDS: dict[str, Any] = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}
_LLAMA: dict[str, Any] = _WORDS | {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
_EXPERTS = _LLAMA | {"experts_implementation": "eager"}  # the others do not compute in 64 bits
_DEEPSEEK: dict[str, Any] = {
    "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 8, "num_key_value_heads": 4, "head_dim": 4,
}  # fmt: skip
_SEEN: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 8, "patch_size": 4,
}  # fmt: skip
_READ: dict[str, Any] = _SEEN | _WORDS | {"max_position_embeddings": SEQ}
_T5: dict[str, Any] = _WORDS | {
    "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
    "dropout_rate": 0.0, "decoder_start_token_id": 0,
}  # fmt: skip
_GPT2: dict[str, Any] = _WORDS | {
    "n_layer": 3, "n_embd": 16, "n_head": 2, "n_positions": 12,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip

MODELS: dict[str, Foreign] = {
    "gpt2": Foreign(_of_transformers("GPT2", "LMHeadModel", **_GPT2), _causal, _its_own),
    "llama": Foreign(_of_transformers("Llama", "ForCausalLM", **_LLAMA), _causal, _its_own),
    "t5": Foreign(_of_transformers("T5", "ForConditionalGeneration", **_T5), _translated, _its_own),
    "vit": Foreign(_of_transformers("ViT", "ForImageClassification", num_labels=4, **_SEEN), _pictures, _its_own),
    "mixtral": Foreign(
        _of_transformers("Mixtral", "ForCausalLM", num_local_experts=4, **_EXPERTS), _causal, _its_own
    ),
    "deepseek": Foreign(_of_transformers("DeepseekV3", "ForCausalLM", **(_EXPERTS | _DEEPSEEK)), _causal, _its_own),
    "clip": Foreign(
        _of_transformers("CLIP", "Model", text_config=_READ, vision_config=_SEEN, projection_dim=8), _pairs, _distance
    ),
    "resnet": Foreign(_front_of_resnet, _numbers(3, 32, 32), _targets, lambda module: [module.layer1, module.layer2]),
    "toy transformer": Foreign(_toy_transformer, _words, _targets),
    "toy experts": Foreign(partial(_toy_transformer, num_experts=4), _words, _targets),
    "shared transformer": Foreign(Columns, _columns, _squares),
    "nested": Foreign(_nested, _numbers(8), _squares, lambda module: [module.module[1], module.module[2]]),
}  # fmt: skip
DEFAULT = ("gpt2", "vit")
"""Small and quick; the others wait for `start.py test all`."""


def over(names: Iterable[str]) -> list[Any]:
    """Parameters of a test, a model each."""
    return [pytest.param(name, marks=() if name in DEFAULT else pytest.mark.nightly) for name in names]
