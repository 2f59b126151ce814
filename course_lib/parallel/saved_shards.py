"""The shards that a rank saves and loads, in the words of torch.distributed.checkpoint (DCP).

A shard says where it lies in the whole tensor, flattened. N ranks cut a tensor in other places than M ranks do, but the
tensor is the same: a rank that loads asks for its own elements, and DCP's planner finds where they were written.
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

from course_lib.parallel.data import buffers_of
from course_lib.parallel.hybrid import AnyOptimizer, HybridParallel
from course_lib.parallel.tensor_gpt import ParallelGPT, shardings
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.parallel.zero3 import Zero3


class SavedShard(NamedTuple):
    """The part of a model's tensor that this rank stores: a shard that its optimizer updates, or all of it."""

    name: str
    shape: torch.Size  # of the model's tensor
    begin: int  # place of the first element in the model's tensor, flattened
    owner: Tensor  # has the elements; of a trained parameter, the tensor that the optimizer updates

    def tensors(self, rule: torch.optim.Optimizer) -> dict[str, Tensor]:
        """`owner` ("weights") and the optimizer's states of its shape, by the optimizer's names (exp_avg)."""
        states = rule.state.get(self.owner, {}).items()
        return {"weights": self.owner} | {
            key: state for key, state in states if isinstance(state, Tensor) and state.shape == self.owner.shape
        }


def whole_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The plain module's parameters and saved buffers, tied ones once; of a `HybridParallel`, those of its stages.

    Raises:
        ValueError: two stages of this rank have a copy each of a tied weight.
    """
    if isinstance(model, HybridParallel):
        tensors: dict[str, Tensor] = {}
        for stage in model.stages.values():
            here = {name + part_name(stage, name): tensor for name, tensor in whole_tensors(stage).items()}
            if twice := tensors.keys() & here.keys():
                raise ValueError(f"two stages of one rank hold {', '.join(twice)}; give 1f1b, or an untied model")
            tensors |= here
        return tensors
    module = model.module if isinstance(model, Zero3) else model
    return dict(module.named_parameters()) | buffers_of(module)


def part_name(stage: nn.Module, name: str) -> str:
    """The end of a parameter's name in a checkpoint: which part this is, if tensor ranks have cut the parameter.

    Parts are saved as tensors of their own: a load may have other pipeline stages and replicas, not other tensor ranks.
    """
    module = stage.module if isinstance(stage, Zero3) else stage
    if not isinstance(module, ParallelGPT) or name not in shardings(module) or dist.get_world_size(module.group) == 1:
        return ""
    return f"/part {dist.get_rank(module.group) + 1} of {dist.get_world_size(module.group)}"


def saved_shards_of(model: nn.Module, optimizer: AnyOptimizer) -> list[SavedShard]:
    """The shards that this rank stores; with a model and an optimizer that cut nothing, all of the model.

    Raises:
        ValueError: the optimizer updates a tensor that is not in the model.
    """
    tensors = whole_tensors(model)
    names = {id(tensor): name for name, tensor in tensors.items()}
    # sharded: parameters that are cut over the ranks of data parallelism, and this rank's shards, by the same numbers
    if isinstance(optimizer, ZeroOptimizer):
        trained, sharded = optimizer.parameters, [(optimizer.parameters, optimizer.pieces)]
    else:
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parts = [each for each in model.modules() if isinstance(each, Zero3)]
        sharded = [(list(each.module.parameters()), each.pieces) for each in parts]
    known = {*names, *(id(piece.value) for _, pieces in sharded for piece in pieces)}
    if strange := [tuple(p.shape) for p in trained if id(p) not in known]:
        raise ValueError(f"the optimizer updates what the model does not have, shapes {strange}; give its own model")
    cut = {id(parameter) for parameters, _ in sharded for parameter in parameters}
    saved = [SavedShard(name, tensor.shape, 0, tensor) for name, tensor in tensors.items() if id(tensor) not in cut]
    for parameters, pieces in sharded:
        for number, inside, _, value in pieces:
            parameter = parameters[number]
            saved.append(SavedShard(names[id(parameter)], parameter.shape, inside.start, value))
    return saved


def shards_of(saved: list[SavedShard], rule: torch.optim.Optimizer) -> dict[str, Any]:
    """The state dict that is written or filled: `weights/NAME`, and for each of the optimizer's states `STATE/NAME`.

    A shard is a view, if the memory is contiguous. The rest is small: other states of a parameter, such as Adam's step
    count, are `optimizer/NAME`; the optimizer's settings are `optimizer`.
    """
    settings = [{key: value for key, value in group.items() if key != "params"} for group in rule.param_groups]
    state: dict[str, Any] = {"optimizer": settings}
    for shard in saved:
        tensors, is_buffer = shard.tensors(rule), not isinstance(shard.owner, nn.Parameter)
        for key, tensor in tensors.items():
            if tensor.numel():  # of a small tensor this rank may hold no element
                state[f"{key}/{shard.name}"] = Shard(shard.shape, shard.begin, tensor.detach().reshape(-1), is_buffer)
        if (known := rule.state.get(shard.owner)) is not None:
            state[f"optimizer/{shard.name}"] = {key: value for key, value in known.items() if key not in tensors}
    return state


def make_room(saved: list[SavedShard], rule: torch.optim.Optimizer, metadata: Metadata) -> None:
    """Give the optimizer the states that were saved, still empty, so that a load finds them in `shards_of`."""
    rule.state.clear()  # states of parameters that have none in the checkpoint must go, too
    owners, known = {shard.name: shard.owner for shard in saved}, dict[str, Any](metadata.state_dict_metadata)
    for path, stored in known.items():
        key, _, name = path.partition("/")
        if name in owners and key not in ("weights", "others", "random"):
            states = rule.state[owners[name]]  # makes an entry, also for a parameter that has no tensor state
            if isinstance(stored, TensorStorageMetadata):
                dtype, of_weights = stored.properties.dtype, known[f"weights/{name}"].properties.dtype
                wanted = owners[name].dtype if dtype == of_weights else dtype  # masters here or there: as wide
                states[key] = torch.zeros_like(owners[name], dtype=wanted, requires_grad=False)


@torch.no_grad()
def restore(state: dict[str, Any], saved: list[SavedShard], rule: torch.optim.Optimizer) -> None:
    """Copy to model and optimizer, after a load, the values that were loaded into other memory than theirs."""
    for shard in saved:
        for key, tensor in shard.tensors(rule).items():
            if not tensor.is_contiguous():  # then its shard was a copy
                tensor.copy_(state[f"{key}/{shard.name}"].elements.view(tensor.shape))
        if shard.owner in rule.state:
            rule.state[shard.owner].update(state[f"optimizer/{shard.name}"])
    for group, settings in zip(rule.param_groups, state["optimizer"], strict=True):
        group.update(settings)


class Shard(NamedTuple):
    """Elements of a tensor that this rank holds. DCP calls the two methods; to DCP all tensors are flat."""

    shape: torch.Size  # of the whole tensor
    begin: int  # place of the first element in the whole tensor, flattened
    elements: Tensor  # flat; a save reads them, a load fills them
    is_buffer: bool = False  # ranks may have other values, such as BatchNorm's statistics: the first rank's are saved

    def copy(self) -> Shard:
        """A shard in memory of its own, on the CPU."""
        return self._replace(elements=self.elements.to("cpu", copy=True))

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size([self.begin]), self.elements.shape)]

    def __create_write_items__(self, name: str, _: Any) -> list[WriteItem]:
        properties = TensorProperties.create_from_tensor(self.elements)
        data = TensorWriteData(self.__create_chunk_list__()[0], properties, torch.Size([self.shape.numel()]))
        return [WriteItem(MetadataIndex(name, [self.begin]), WriteItemType.SHARD, tensor_data=data)]


class SavePlanner(DefaultSavePlanner):
    """DCP's planner, which lets one rank write a tensor that several hold, and notes the shapes of whole tensors."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """This rank's plan, and its shards without their elements."""
        known = {name: (v.shape, v.is_buffer) for name, v in self.state_dict.items() if isinstance(v, Shard)}
        return dataclasses.replace(super().create_local_plan(), planner_data=known)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """The plan of all ranks; the first rank makes it."""
        known = dict(ChainMap(*(plan.planner_data for plan in all_plans)))
        shapes, chosen, seen = {name: shape for name, (shape, _) in known.items()}, list[SavePlan](), set[str]()
        for plan in all_plans:  # DCP would take a buffer from any rank, and BatchNorm's two from two ranks
            chosen.append(dataclasses.replace(plan, items=[i for i in plan.items if i.index.fqn not in seen]))
            seen |= {name for name, (_, is_buffer) in plan.planner_data.items() if is_buffer}
        plans, metadata = super().create_global_plan(chosen)
        return plans, dataclasses.replace(metadata, planner_data={"shapes": shapes})

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The tensor or object to write."""
        value = self.state_dict[index.fqn]
        return value.elements if isinstance(value, Shard) else value


class LoadPlanner(DefaultLoadPlanner):
    """DCP's planner, which reads whatever overlaps with a shard."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Store the state dict unchanged."""
        # DCP's own method would flatten it, and take a shard, a named tuple, apart
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load an object that is no shard; its tensors on another rank's GPU come to this rank's."""

        def here(stored: Any, device: str) -> Any:
            return stored if device == "cpu" else stored.cuda()

        self.state_dict[read_item.dest_index.fqn] = torch.load(value, here, weights_only=False)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """The memory to fill."""
        return self.state_dict[index.fqn].elements


def refuse_another_model(
    metadata: Metadata, shapes_here: dict[str, torch.Size], others: dict[str, Any], where: Path
) -> None:
    """Raise a ValueError that names the differences, if `metadata` is not that of such a model with such `others`.

    `shapes_here` are those of all ranks' tensors that have an element. A model on another number of tensor ranks is
    another one: its parts are saved as tensors of their own.
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
    """The number of ranks that cut a layer, read from the names that `part_name` makes."""
    return max((int(name.rpartition(" of ")[2]) for name in names if "/part " in name), default=1)
