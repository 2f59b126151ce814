"""One value for a training setup: the model, its batch, how it is trained, and over how many ranks.

A formula takes a `Setup` and reads what it needs. Change one thing and keep the rest with `with_`:

    plain = Setup(SMALL, batch_size=8, seq=128)
    lean = plain.with_(precision="mixed", recompute="full")
    predict.peak(plain), predict.peak(lean)

What a formula does not hold for, it refuses: a setup for four ranks never gets the answer for one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, get_args

from course_kit.units import Count
from course_lib.model import zoo
from course_lib.model.gpt import GPTConfig
from course_lib.predict.params import Shape, config_of

Precision = Literal["fp32", "mixed", "bf16"]
Gradients = Literal["same", "fp32"]
Optimizer = Literal["sgd", "momentum", "adam"]
Recompute = Literal["none", "selective", "full"]
Device = Literal["cpu", "cuda"]

_WORDS: dict[str, Any] = {
    "precision": Precision, "gradients": Gradients, "recompute": Recompute, "device": Device,
}  # fmt: skip
_SIZES = ("batch_size", "seq", "every", "tensor", "pipeline", "data", "context")
_PARALLEL = {"tensor": 1, "pipeline": 1, "data": 1, "context": 1, "zero": 0, "sequence_parallel": False}
_WEIGHT_BYTES = {"fp32": 4, "mixed": 2, "bf16": 2}


@dataclass(frozen=True, repr=False)
class Setup:
    """What is trained, and how.

    Attributes:
        config: the shape; a row of the zoo stands for its config. A bare number of parameters is enough for
            `model_states`, and for nothing else.
        batch_size: sequences of one optimizer step, on all ranks together.
        seq: tokens in a sequence; the model's context if not given.
        micro_batch: sequences that a rank sends through the model at once, whose gradients add up; the last piece may
            be smaller. None: all that the rank has.
        precision: "fp32"; "mixed": 16-bit weights under an fp32 copy (`train.precision.MasterWeights`); "bf16":
            everything in 16 bits.
        gradients: "same" as the weights, or "fp32", as Megatron-LM and DeepSpeed sum them under 16-bit weights.
        optimizer: "adam" (also AdamW), "momentum", "sgd"; None for a step that ends with the backward pass.
        recompute: what runs a second time in the backward pass: "none", "selective" (attention's scores), or "full"
            (whole blocks).
        every: with "full", blocks in a recomputed segment, of which only the first one's input is kept.
        device: whose kernels run, "cpu" or "cuda".
        tensor, pipeline, data, context: ranks that share a matrix product, the layers, the batch, a sequence.
        zero: what the `data` ranks split up: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters.
        sequence_parallel: whether the tensor ranks also split what they would all hold (Korthikanti et al. 2022).

    Raises:
        ValueError: an unknown word, a size that is no positive integer, or one that does not split as it would have
            to: the batch over `data`, a sequence over `context`, heads over `tensor`, layers over `pipeline`.
    """

    config: Shape | float
    batch_size: int = 1
    seq: int = None  # type: ignore[assignment]  # an integer from __post_init__ on
    micro_batch: int | None = None
    precision: Precision = "fp32"
    gradients: Gradients = "same"
    optimizer: Optimizer | None = "adam"
    recompute: Recompute = "none"
    every: int = 1
    device: Device = "cpu"
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    zero: Literal[0, 1, 2, 3] = 0
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", _model(self.config))
        if self.seq is None:
            number = isinstance(self.config, int | float)
            object.__setattr__(self, "seq", 1 if number else config_of(self.shape).context)
        for name, words in _WORDS.items():
            one_of(name, getattr(self, name), get_args(words))
        one_of("optimizer", self.optimizer, (*get_args(Optimizer), None))
        one_of("zero", self.zero, (0, 1, 2, 3))
        one_of("sequence_parallel", self.sequence_parallel, (False, True))
        for name in (*_SIZES, *(("micro_batch",) if self.micro_batch is not None else ())):
            _whole(name, getattr(self, name))
        if self.every > 1 and self.recompute != "full":
            raise ValueError(f'every={self.every} is for recompute="full"; here recompute={self.recompute!r}')
        self._splits()

    def _splits(self) -> None:
        """Refuse sizes that do not fit each other."""
        _divides("batch_size", self.batch_size, "data", self.data)
        _divides("seq", self.seq, "context", self.context)
        if isinstance(self.config, int | float):
            return
        config = config_of(self.config)
        if isinstance(config, GPTConfig) and self.seq > config.context:
            raise ValueError(
                f"seq={self.seq} is longer than the model's context of {config.context}: shorten the sequence, or give "
                f"the config a longer context"
            )
        _divides("heads", config.heads, "tensor", self.tensor)
        if self.pipeline > config.layers:
            raise ValueError(f"pipeline={self.pipeline} needs a layer for each stage; the model has {config.layers}")

    def with_(self, **changes: Any) -> Setup:
        """A copy with some values changed: `setup.with_(recompute="full")`.

        Raises:
            ValueError: a name that a setup does not have; and as for a new one.
        """
        known = [each.name for each in fields(self)]
        unknown = [name for name in changes if name not in known]
        if unknown:
            raise ValueError(f"a Setup has no {', '.join(unknown)}; it has {', '.join(known)}")
        return replace(self, **changes)

    def __repr__(self) -> str:
        no_seq = "seq" if isinstance(self.config, int | float) else ""  # a bare number of parameters reads no tokens
        changed = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.name != "config" and getattr(self, each.name) != (1 if each.name == no_seq else each.default)
        ]
        return f"Setup({', '.join([_described(self.config), *changed])})"

    # ---- what follows from it --------------------------------------------------------------------------------------

    @property
    def shape(self) -> Any:
        """The config; a `GPTConfig` or an `Architecture`.

        Raises:
            ValueError: only a number of parameters was given.
        """
        if isinstance(self.config, int | float):
            raise ValueError(f"{self.config:,} parameters have no layers and no width: this formula needs a config")
        return self.config

    @property
    def gpt(self) -> GPTConfig:
        """The config, for formulas that follow the tensors of our GPT.

        Raises:
            ValueError: another architecture, whose tensors are not known.
        """
        if not isinstance(self.shape, GPTConfig):
            name = type(self.shape).__name__
            raise ValueError(f"this formula follows our GPT's tensors and needs a GPTConfig; given was: {name}")
        return self.shape

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight: 4 or 2."""
        return _WEIGHT_BYTES[self.precision]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient: 4 or 2."""
        return 4 if self.gradients == "fp32" else self.weight_bytes

    @property
    def rows(self) -> int:
        """Sequences that one rank has in its model at once: a micro-batch, or all that it has."""
        own = self.batch_size // self.data
        return own if self.micro_batch is None else min(self.micro_batch, own)

    @property
    def micro_batches(self) -> Count:
        """Forward and backward passes of a step on each rank."""
        return Count(-(-self.batch_size // self.data // self.rows))

    @property
    def world_size(self) -> Count:
        """Ranks: tensor · pipeline · data · context."""
        return Count(self.tensor * self.pipeline * self.data * self.context)

    def refuse_parallel(self, formula: str, *known: str) -> None:
        """For formulas: raise unless every parallel size that is not among `known` has its default.

        Raises:
            ValueError: names the sizes that `formula` does not hold for.
        """
        extra = [
            f"{name}={getattr(self, name)}"
            for name, alone in _PARALLEL.items()
            if name not in known and getattr(self, name) != alone
        ]
        if extra:
            raise ValueError(f"{formula} does not hold for {', '.join(extra)}: it is the formula for one rank of them")


def one_of(name: str, given: object, known: Collection[object]) -> None:
    """Raise a ValueError that lists what is known, unless `given` is."""
    if isinstance(given, bool) != any(isinstance(each, bool) for each in known) or given not in known:
        raise ValueError(f"{name}={given!r}: it must be one of {', '.join(map(repr, known))}")


def positive(**given: float) -> None:
    """Raise a ValueError with the numbers, unless all of them are above 0."""
    if not all(number > 0 for number in given.values()):
        raise ValueError(f"{', '.join(f'{name}={number}' for name, number in given.items())}: must be positive")


def not_negative(**given: float) -> None:
    """Raise a ValueError with the numbers, if one of them is below 0 (or is no number)."""
    if not all(number >= 0 for number in given.values()):
        raise ValueError(f"{', '.join(f'{name}={number}' for name, number in given.items())}: must not be negative")


def _whole(name: str, size: object) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"{name}={size!r}: it must be an integer, at least 1")


def _divides(whole: str, size: int, ranks: str, n: int) -> None:
    if size % n:
        raise ValueError(f"{whole}={size} does not split into {ranks}={n} equal parts")


def _model(given: object) -> Any:
    """A config, or a whole number of parameters as an int."""
    if isinstance(given, Shape):
        return config_of(given)
    if isinstance(given, int | float) and not isinstance(given, bool) and float(given).is_integer() and given >= 1:
        return int(given)
    raise ValueError(f"config={given!r}: give a GPTConfig, a row of the zoo, or a number of parameters, at least 1")


def _described(config: Any) -> str:
    """A row's name, a number in words, or what of a config differs from the defaults."""
    if isinstance(config, int):
        return f"{config:,} parameters"
    names = [row.name for row in zoo.ALL if row.config == config]
    if names:
        return names[0]
    shown = [f for f in fields(config) if f.default is MISSING or getattr(config, f.name) != f.default]
    return f"{type(config).__name__}({', '.join(f'{f.name}={getattr(config, f.name)!r}' for f in shown)})"
