"""One value for a training setup: the model, its batch, how it is trained, and over how many ranks.

    plain = Setup(SMALL, batch_size=8, seq=128)
    lean = plain.with_(precision="mixed", recompute="full")
    predict.peak(plain), predict.peak(lean)

That ranks divide model and batch is checked here; `stage_layers` checks equal stages, `pipeline` what schedules and
chunks divide, the planner what a cluster does. A formula refuses a setup for which it does not hold: one for four ranks
never gets the answer for one.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from math import prod
from typing import Any, Literal, get_args

from course_kit.units import Count
from course_lib.model import zoo
from course_lib.model.gpt import GPTConfig
from course_lib.model.refusals import one_of
from course_lib.model.zoo import Architecture, ExpertModel, GroupedAttention, LatentAttention, Published

Shape = GPTConfig | Architecture | ExpertModel | Published
"""The argument of formulas: a config, or a row of the zoo."""
Config = GPTConfig | Architecture | ExpertModel
Precision = Literal["fp32", "mixed", "bf16"]
Gradients = Literal["same", "fp32"]
Optimizer = Literal["sgd", "momentum", "adam"]
Recompute = Literal["none", "selective", "full"]
Device = Literal["cpu", "cuda"]

_WORDS: dict[str, tuple[object, ...]] = {
    "precision": get_args(Precision), "gradients": get_args(Gradients), "recompute": get_args(Recompute),
    "device": get_args(Device), "optimizer": (*get_args(Optimizer), None), "zero": (0, 1, 2, 3),
    "sequence_parallel": (False, True),
}  # fmt: skip
_SIZES = ("batch_size", "seq", "recompute_every", "tensor", "pipeline", "data", "context", "expert")
_PARALLEL = {"tensor": 1, "pipeline": 1, "data": 1, "context": 1, "expert": 1, "zero": 0, "sequence_parallel": False}


@dataclass(frozen=True, repr=False)
class Setup:
    """A training setup.

    Attributes:
        config: the shape; a row of the zoo stands for its config. A bare number of parameters is enough for
            `model_states`, and for nothing else.
        batch_size: sequences of one optimizer step, on all ranks together; if not given, one for each rank that has its
            own, however many there will be.
        seq: tokens in a sequence; the model's context if not given.
        micro_batch: sequences that a rank sends through the model at once, whose gradients add up; the last piece may
            be smaller. None: all that the rank has.
        precision: "fp32"; "mixed": 16-bit weights under an fp32 copy (`train.precision.MasterWeights`); "bf16":
            everything in 16 bits.
        gradients: "same" as the weights, or "fp32", as Megatron-LM and DeepSpeed sum them under 16-bit weights.
        optimizer: "adam" ("adamw" is the same here), "momentum", "sgd"; None for a step that ends with the backward
            pass.
        recompute: the part that runs again in the backward pass: "none", "selective" (scores), "full" (whole blocks).
        recompute_every: with "full", blocks in a recomputed segment, of which only the first one's input is kept.
        device: the device whose kernels run, "cpu" or "cuda".
        tensor, pipeline, data, context: ranks that share a matrix product, the layers, the batch, a sequence.
        zero: split over `data` · `context` ranks: 0 nothing, 1 optimizer state, 2 also gradients, 3 also parameters.
        sequence_parallel: whether tensor ranks also split the stream between products (Korthikanti et al. 2022).
        expert: ranks that share the experts. Each has sequences of its own, and a copy of all that is no expert: ZeRO
            splits that over `data` · `context` · `expert`, and the experts over `data` · `context`.

    Raises:
        ValueError: an unknown word, a size that is no positive integer or does not split over its ranks; experts with
            `sequence_parallel`; an encoder and a decoder over `pipeline` or `context`; a bare number of parameters over
            ranks that cut layers; ZeRO in "bf16".
    """

    config: Shape | float
    batch_size: int = None  # type: ignore[assignment]  # an integer from __post_init__ on, as is `seq`
    seq: int = None  # type: ignore[assignment]
    micro_batch: int | None = None
    precision: Precision = "fp32"
    gradients: Gradients = "same"
    optimizer: Optimizer | Literal["adamw"] | None = "adam"
    recompute: Recompute = "none"
    recompute_every: int = 1
    device: Device = "cpu"
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    context: int = 1
    zero: Literal[0, 1, 2, 3] = 0
    sequence_parallel: bool = False
    expert: int = 1
    _not_given: tuple[str, ...] = field(default=(), init=False, compare=False)

    def __post_init__(self) -> None:
        settled: dict[str, Any] = {"config": _model(self.config)}
        settled["_not_given"] = tuple(name for name in ("batch_size", "seq") if getattr(self, name) is None)
        if self.optimizer == "adamw":
            settled["optimizer"] = "adam"
        if self.batch_size is None:
            sizes = (self.data, self.expert)
            settled["batch_size"] = prod(sizes) if all(isinstance(n, int) and n > 0 for n in sizes) else 1
        if self.seq is None:
            settled["seq"] = _context(settled["config"])
        for name, value in settled.items():
            object.__setattr__(self, name, value)  # the dataclass is frozen
        for name, words in _WORDS.items():
            one_of(name, getattr(self, name), words)
        for name in (*_SIZES, *(("micro_batch",) if self.micro_batch is not None else ())):
            _whole(name, getattr(self, name))
        if self.recompute_every > 1 and self.recompute != "full":
            raise ValueError(f'recompute_every={self.recompute_every} is for recompute="full", not {self.recompute!r}')
        self._splits()

    def _splits(self) -> None:
        """Refuse sizes that do not fit each other."""
        _divides("batch_size", self.batch_size, data=self.data, expert=self.expert)
        _divides("seq", self.seq, context=self.context, tensor=self.stream_parts)
        if self.zero and self.precision == "bf16":
            raise ValueError(
                f'zero={self.zero} with precision="bf16": under 16-bit weights, ZeRO here keeps an fp32 copy; that is '
                f'precision="mixed"'
            )
        if isinstance(self.config, int | float):
            if (self.tensor, self.pipeline, self.expert) != (1, 1, 1):
                raise ValueError(
                    f"tensor={self.tensor}, pipeline={self.pipeline}, expert={self.expert} cut layers, and "
                    f"{self.config:,} parameters have none: give a config"
                )
            return
        config = self.shape
        if isinstance(config, GPTConfig) and self.seq > config.context:
            raise ValueError(
                f"seq={self.seq} is longer than the model's context of {config.context}: shorten the sequence, or give "
                f"the config a longer context"
            )
        hidden = ("expert_hidden", "dense_hidden") if isinstance(config, ExpertModel) else ("mlp_width",)
        _divides("heads", config.heads, tensor=self.tensor)  # a head stays in one piece
        _divides("kv_heads", attention_of(config).kv_heads, tensor=self.tensor)
        for name in ("width", *hidden):
            _divides(name, getattr(config, name), tensor=self.tensor)
        if self.pipeline > config.layers:
            raise ValueError(f"pipeline={self.pipeline} needs a layer for each stage; the model has {config.layers}")
        self._experts(config)

    def _experts(self, config: Config) -> None:
        """Refuse sizes that experts do not allow, and `expert` ranks without experts."""
        if not isinstance(config, ExpertModel):
            if self.expert > 1:
                raise ValueError(f"expert={self.expert} shares experts; {_described(config)} has none")
            return
        _divides("experts", config.experts, expert=self.expert)
        if self.sequence_parallel and config.expert_layers:
            raise ValueError("sequence_parallel with experts: their router reads whole sequences here; choose one")
        if (self.pipeline, self.context) != (1, 1):
            self.refuse_uncounted()

    def with_(self, **changes: Any) -> Setup:
        """A copy with some values changed: `setup.with_(recompute="full")`."""
        known = [each.name for each in fields(self) if each.init]
        unknown = [name for name in changes if name not in known]
        if unknown:
            raise ValueError(f"a Setup has no {', '.join(unknown)}; it has {', '.join(known)}")
        unsaid = {"batch_size": None} if "batch_size" in self._not_given else {}
        return replace(self, **{**unsaid, **changes})

    def __repr__(self) -> str:
        unsaid = {"config"}
        if self.batch_size == self.data * self.expert and (self.batch_size == 1 or "batch_size" in self._not_given):
            unsaid.add("batch_size")  # a default is not printed
        if self.seq == 1 and isinstance(self.config, int | float):  # a bare number of parameters reads no tokens
            unsaid.add("seq")
        changed = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.init and each.name not in unsaid and getattr(self, each.name) != each.default
        ]
        return f"Setup({', '.join([_described(self.config), *changed])})"

    @property
    def shape(self) -> Any:
        """The config: a `GPTConfig`, an `Architecture` or an `ExpertModel`; refused where a number was given."""
        if isinstance(self.config, int | float):
            raise ValueError(f"{self.config:,} parameters have no layers and no width: this formula needs a config")
        return self.config

    @property
    def gpt(self) -> GPTConfig:
        """The config, for formulas that follow the tensors of our GPT; another architecture is refused."""
        if not isinstance(self.shape, GPTConfig):
            name = type(self.shape).__name__
            raise ValueError(f"this formula follows our GPT's tensors and needs a GPTConfig; given was: {name}")
        return self.shape

    @property
    def weight_bytes(self) -> int:
        """Bytes of a weight: 4 or 2."""
        return 4 if self.precision == "fp32" else 2

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient: 4 or 2."""
        return 4 if self.gradients == "fp32" else self.weight_bytes

    @property
    def rank_rows(self) -> int:
        """Sequences that fall on one rank in a step."""
        return self.batch_size // (self.data * self.expert)  # tensor, pipeline and context ranks share theirs

    @property
    def rows_per_pass(self) -> int:
        """Sequences that one rank has in its model at once: a micro-batch, or all that fall on the rank."""
        return self.rank_rows if self.micro_batch is None else min(self.micro_batch, self.rank_rows)

    @property
    def micro_batches(self) -> Count:
        """Forward and backward passes of a step on each rank."""
        return Count(-(-self.rank_rows // self.rows_per_pass))  # rounded up: the last piece may be smaller

    @property
    def tokens(self) -> int:
        """Tokens that one rank has in its model at once: its part of the sequences of a micro-batch."""
        return self.rows_per_pass * self.seq // self.context  # rows are whole, each sequence is cut

    @property
    def stream_parts(self) -> int:
        """Parts into which tensor ranks cut the stream between their products: 1 without `sequence_parallel`."""
        return self.tensor if self.sequence_parallel else 1

    @property
    def world_size(self) -> Count:
        """Ranks: tensor · pipeline · data · context · expert."""
        return Count(self.tensor * self.pipeline * self.data * self.context * self.expert)

    def copies(self, of_experts: bool) -> int:
        """The ranks with the same parameters, which sum their gradients and among which ZeRO cuts."""
        return self.data * self.context * (1 if of_experts else self.expert)

    def refuse_uncounted(self) -> None:
        """Raise a ValueError, in a formula of passes, for a shape whose passes nobody counts here."""
        config = self.shape
        if isinstance(config, ExpertModel) and config.two_streams:
            one = f"pipeline={self.pipeline}, context={self.context} and all formulas of passes are for one"
            raise ValueError(f"{config.name} is an encoder and a decoder with a stream each: {one}")
        if isinstance(config, Architecture) and config.positions == "relative":
            raise ValueError("relative positions keep tensors of their own, send and compute more: not counted here")

    def refuse_parallel(self, formula: str, *known: str) -> None:
        """Raise a ValueError, in a formula, unless every parallel size that is not among `known` has its default."""
        extra = [
            f"{name}={getattr(self, name)}"
            for name, alone in _PARALLEL.items()
            if name not in known and getattr(self, name) != alone
        ]
        if extra:
            raise ValueError(f"{formula} does not hold for {', '.join(extra)}: it is the formula for one rank of them")


def config_of(shape: Shape) -> Config:
    """The config that `shape` is or holds."""
    return shape.config if isinstance(shape, Published) else shape


def attention_of(config: Config) -> GroupedAttention | LatentAttention:
    """The heads of a config's attention; our GPT has one of keys and values for every query head."""
    if isinstance(config, GPTConfig):
        return GroupedAttention(config.heads, config.heads, config.head_width)
    return config.attention


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


def _divides(whole: str, size: int, **ranks: int) -> None:
    if size % prod(ranks.values()):
        told = " · ".join(f"{name}={n}" for name, n in ranks.items() if n > 1)
        raise ValueError(f"{whole}={size} does not split into {told} equal parts")


def _context(config: Any) -> int:
    """The default of `seq`: the model's context; 1 where no formula reads tokens."""
    if isinstance(config, int) or (isinstance(config, ExpertModel) and config.two_streams):
        return 1
    if config.context is None:
        raise ValueError(f"{config.name} says no context: give seq, the tokens in a sequence")
    return config.context


def _model(given: object) -> Any:
    """A config, or a whole number of parameters as an int."""
    if isinstance(given, Shape):
        return config_of(given)
    if isinstance(given, int | float) and not isinstance(given, bool) and float(given).is_integer() and given >= 1:
        return int(given)
    raise ValueError(f"config={given!r}: give a GPTConfig, a row of the zoo, or a number of parameters, at least 1")


def _described(config: Any) -> str:
    """A row's name, a number in words, or the values of a config that differ from the defaults."""
    if isinstance(config, int):
        return f"{config:,} parameters"
    if isinstance(config, ExpertModel):
        return config.name
    names = [row.name for row in zoo.ALL if row.config == config]  # a row of the zoo goes by its name
    if names:
        return names[0]
    shown = [f for f in fields(config) if f.default is MISSING or getattr(config, f.name) != f.default]
    return f"{type(config).__name__}({', '.join(f'{f.name}={getattr(config, f.name)!r}' for f in shown)})"
