"""`cloudpickle`, with two rules of our own: a tensor on a GPU travels through the CPU, a module by its name.

An argument that lies on the notebook's GPU arrives in each rank on the rank's own device; a result that lies on a
rank's GPU arrives in the notebook on the CPU. Otherwise every rank would open a context on the sender's GPU, which
costs hundreds of MB each, and with NCCL the tensor would be on the wrong device.

Code that names `dist` and anything called `config` takes the module `torch.distributed.config` along, as cloudpickle
sees it; that is of a class of PyTorch's own, which cloudpickle does not know as a module.

Lesson 06 uses this module without opening it.
"""

from __future__ import annotations

import importlib
import io
import sys
from types import ModuleType
from typing import Any

import cloudpickle


def dumps(value: object) -> bytes:
    """The bytes of `value`; functions and classes of a notebook go by value."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


loads = cloudpickle.loads


class _Pickler(cloudpickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.Tensor) and _is_on_accelerator(obj):
            kind = torch.nn.Parameter if isinstance(obj, torch.nn.Parameter) else torch.Tensor
            return _on_own_device, (obj.detach().cpu(), obj.requires_grad, kind)
        if isinstance(obj, ModuleType) and type(obj) is not ModuleType and sys.modules.get(obj.__name__) is obj:
            return importlib.import_module, (obj.__name__,)
        return super().reducer_override(obj)


def _is_on_accelerator(tensor: Any) -> bool:
    return tensor.device.type not in ("cpu", "meta")


def _on_own_device(tensor: Any, requires_grad: bool, kind: type) -> Any:
    """In the receiving process: the tensor on the device that belongs to it."""
    from course_kit.ranks._processes.inside import device

    here = tensor.to(device())
    return here.requires_grad_(requires_grad) if kind is type(here) else kind(here, requires_grad=requires_grad)
