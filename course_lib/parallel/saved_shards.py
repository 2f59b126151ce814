"""What a rank holds of tensors that are cut over ranks, in the words of torch.distributed.checkpoint (DCP).

A shard says where it lies in the whole tensor, flattened. N ranks cut a tensor in other places than M ranks do, but it
is the same tensor: a rank that loads asks for its own elements, and DCP's planner finds where they were written.
`checkpoint` saves and loads by it.
"""

from __future__ import annotations

import dataclasses
import io
from collections import ChainMap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType

from course_lib.parallel.hybrid import HybridParallel
from course_lib.parallel.tensor_gpt import ParallelGPT, cuts
from course_lib.parallel.zero import LocalShard, ZeroOptimizer
from course_lib.parallel.zero3 import Zero3


class Shard(NamedTuple):
    """Elements of a tensor that this rank holds. DCP asks its two methods; to DCP all tensors are flat.

    Attributes:
        shape: of the whole tensor.
        begin: place of the first element in the whole tensor, flattened.
        elements: of one dim; what is saved, or filled by a load.
    """

    shape: torch.Size
    begin: int
    elements: Tensor

    def copy(self) -> Shard:
        """In memory of its own, on the CPU."""
        return self._replace(elements=self.elements.to("cpu", copy=True))

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size([self.begin]), self.elements.shape)]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.elements)
        data = TensorWriteData(self.__create_chunk_list__()[0], properties, torch.Size([self.shape.numel()]))
        return [WriteItem(MetadataIndex(name, [self.begin]), WriteItemType.SHARD, tensor_data=data)]


class SavePlanner(DefaultSavePlanner):
    """DCP's own, which lets one rank write what several hold, and notes the shapes of whole tensors beside."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """On each rank."""
        shapes = {name: value.shape for name, value in self.state_dict.items() if isinstance(value, Shard)}
        return dataclasses.replace(super().create_local_plan(), planner_data=shapes)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """On the first rank, from the plans of all."""
        plans, metadata = super().create_global_plan(all_plans)
        shapes = dict(ChainMap(*(plan.planner_data for plan in all_plans)))
        return plans, dataclasses.replace(metadata, planner_data={"shapes": shapes})

    def lookup_object(self, index: MetadataIndex) -> Any:
        """What to write."""
        value = self.state_dict[index.fqn]
        return value.elements if isinstance(value, Shard) else value


class LoadPlanner(DefaultLoadPlanner):
    """DCP's own, which reads whatever overlaps with a shard."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """As DCP's, which would take a shard for a tuple."""
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """What is no shard. What another GPU has saved comes to this rank's."""

        def here(stored: Any, device: str) -> Any:
            return stored if device == "cpu" else stored.cuda()

        self.state_dict[read_item.dest_index.fqn] = torch.load(value, here, weights_only=False)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """What to fill."""
        return self.state_dict[index.fqn].elements


class Cut(NamedTuple):
    """What this rank stores of one of the model's tensors: a piece that its optimizer updates, or all of it.

    Attributes:
        name, shape: of the model's tensor.
        begin: place of the first element in the model's tensor, flattened.
        owner: where the elements are stored; for what is trained, the tensor that the optimizer updates.
    """

    name: str
    shape: torch.Size
    begin: int
    owner: Tensor

    def tensors(self, rule: torch.optim.Optimizer) -> dict[str, Tensor]:
        """`owner` and the optimizer's states of its shape, by what they are."""
        states = rule.state.get(self.owner, {}).items()
        return {"weights": self.owner} | {
            key: state for key, state in states if isinstance(state, Tensor) and state.shape == self.owner.shape
        }


def whole_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The plain module's parameters, and the buffers that it saves; tied ones once. Of a grid, what its stages have.

    Raises:
        ValueError: two stages of this rank have a copy each of a tied weight.
    """
    if isinstance(model, HybridParallel):
        found: dict[str, Tensor] = {}
        for stage in model.stages.values():
            here = {name + part_name(stage, name): tensor for name, tensor in whole_tensors(stage).items()}
            if twice := found.keys() & here.keys():
                raise ValueError(f"two stages of one rank hold {', '.join(twice)}; give 1f1b, or an untied model")
            found |= here
        return found
    module = model.module if isinstance(model, Zero3) else model
    saved = module.state_dict(keep_vars=True)
    return dict(module.named_parameters()) | {name: b for name, b in module.named_buffers() if name in saved}


def part_name(stage: nn.Module, name: str) -> str:
    """What a parameter's name ends in: which part of it this is, if tensor ranks have cut it.

    Parts are saved as tensors of their own. So pipeline stages and replicas may be other ones in a load, the tensor
    ranks may not.
    """
    module = stage.module if isinstance(stage, Zero3) else stage
    if not isinstance(module, ParallelGPT) or name not in cuts(module) or dist.get_world_size(module.group) == 1:
        return ""
    return f"/part {dist.get_rank(module.group) + 1} of {dist.get_world_size(module.group)}"


def cuts_of(model: nn.Module, optimizer: ZeroOptimizer | torch.optim.Optimizer) -> list[Cut]:
    """What this rank stores; with a model and an optimizer that cut nothing, all of the model.

    Raises:
        ValueError: the optimizer updates what is not in the model.
    """
    tensors, sharded = whole_tensors(model), sharded_parameters(model, optimizer)
    is_zero = isinstance(optimizer, ZeroOptimizer)
    trained = optimizer.parameters if is_zero else [p for group in optimizer.param_groups for p in group["params"]]
    names = {id(tensor): name for name, tensor in tensors.items()}
    known = {*names, *(id(piece.value) for _, pieces in sharded for piece in pieces)}
    strange = [tuple(p.shape) for p in trained if id(p) not in known]
    if strange:
        raise ValueError(f"the optimizer updates what the model does not have, shapes {strange}; give its own model")
    shared_out = {id(parameter) for parameters, _ in sharded for parameter in parameters}
    found = [Cut(name, tensor.shape, 0, tensor) for name, tensor in tensors.items() if id(tensor) not in shared_out]
    for parameters, pieces in sharded:
        for number, inside, _, value in pieces:
            parameter = parameters[number]
            found.append(Cut(names[id(parameter)], parameter.shape, inside.start, value))
    return found


def sharded_parameters(
    model: nn.Module, optimizer: ZeroOptimizer | torch.optim.Optimizer
) -> list[tuple[list[nn.Parameter], list[LocalShard]]]:
    """The parameters that are cut over the ranks of data parallelism, and this rank's pieces, numbered alike."""
    if isinstance(optimizer, ZeroOptimizer):
        return [(optimizer.parameters, optimizer.pieces)]
    parts = [each for each in model.modules() if isinstance(each, Zero3)]
    return [(list(each.module.parameters()), each.pieces) for each in parts]


def shards_of(cuts: list[Cut], rule: torch.optim.Optimizer) -> dict[str, Any]:
    """What is to be written or filled: `weights/NAME`, and for each of the optimizer's states `STATE/NAME`.

    A shard is a view, if the memory is contiguous. What is no shard is small: what else the optimizer knows of a
    parameter, as Adam's step count, is `optimizer/NAME`; its settings are `optimizer`.
    """
    settings = [{key: value for key, value in group.items() if key != "params"} for group in rule.param_groups]
    found: dict[str, Any] = {"optimizer": settings}
    for cut in cuts:
        tensors = cut.tensors(rule)
        for key, tensor in tensors.items():
            if tensor.numel():
                found[f"{key}/{cut.name}"] = Shard(cut.shape, cut.begin, tensor.detach().reshape(-1))
        if cut.owner in rule.state:
            rest = {key: value for key, value in rule.state[cut.owner].items() if key not in tensors}
            found[f"optimizer/{cut.name}"] = rest
    return found


def make_room(cuts: list[Cut], rule: torch.optim.Optimizer, metadata: Metadata) -> None:
    """Give the optimizer the states that were saved, still empty, so that `shards_of` is what a load must fill."""
    rule.state.clear()
    cut_of = {cut.name: cut for cut in cuts}
    for saved, stored in metadata.state_dict_metadata.items():
        key, _, name = saved.partition("/")
        if name in cut_of and key not in ("weights", "others", "random"):
            states, owner = rule.state[cut_of[name].owner], cut_of[name].owner
            if isinstance(stored, TensorStorageMetadata):
                states[key] = torch.zeros_like(owner, dtype=stored.properties.dtype, requires_grad=False)


@torch.no_grad()
def restore(state: dict[str, Any], cuts: list[Cut], rule: torch.optim.Optimizer) -> None:
    """After a load: what is no view of model or optimizer goes there."""
    for cut in cuts:
        for key, tensor in cut.tensors(rule).items():
            if not tensor.is_contiguous():
                tensor.copy_(state[f"{key}/{cut.name}"].elements.view(tensor.shape))
        if cut.owner in rule.state:
            rule.state[cut.owner].update(state[f"optimizer/{cut.name}"])
    for group, settings in zip(rule.param_groups, state["optimizer"], strict=True):
        group.update(settings)


def refuse_another_model(
    metadata: Metadata, shapes_here: dict[str, torch.Size], others: dict[str, Any], where: Path
) -> None:
    """Raise a ValueError that names what differs, if `metadata` is not that of such a model with such `others`.

    A model on another number of tensor ranks is another one: its parts are saved as tensors of their own.

    Args:
        metadata: of the checkpoint.
        shapes_here: of the model's tensors that have an element, those of all ranks.
        others: by name.
        where: the checkpoint lies.
    """
    shapes = {name.partition("/"): tuple(shape) for name, shape in metadata.planner_data["shapes"].items()}
    found: dict[str, Any] = {name: shape for (kind, _, name), shape in shapes.items() if kind == "weights"}
    found |= {name: "state" for name in metadata.state_dict_metadata if name.startswith("others/")}
    needed: dict[str, Any] = {name: tuple(shape) for name, shape in shapes_here.items()}
    needed |= {f"others/{name}": "state" for name in others}
    saved_on, ranks_here = _tensor_ranks(found), _tensor_ranks(needed)
    if saved_on != ranks_here:
        raise ValueError(
            f"{where} was saved on {saved_on} tensor ranks, and here a layer is cut over {ranks_here}: each part is a "
            f"tensor of its own; load with tensor={saved_on} (pipeline, replicas and ZeRO may be others)"
        )
    differ = [name for name in sorted(found | needed) if found.get(name) != needed.get(name)]
    if differ:
        said = "; ".join(f"{name}: found {found.get(name)}, needed {needed.get(name)}" for name in differ[:5])
        raise ValueError(f"{where} is a checkpoint of something else; {len(differ)} names differ: {said}")


def _tensor_ranks(names: Iterable[str]) -> int:
    """How many ranks cut a layer, as `part_name` says it."""
    return max((int(name.rpartition(" of ")[2]) for name in names if "/part " in name), default=1)
