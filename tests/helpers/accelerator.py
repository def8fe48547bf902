"""A pretended accelerator: catches, on a machine that has none, tensors that are on the wrong device.

Its tensors hold ordinary ones within and say that they are on another device.  As with a real one, an operation whose
tensors are partly there and partly on the CPU fails, but for single numbers and indices; and as with Apple's, there
is no float64.  The arithmetic is that of the CPU, so a run must give the very same numbers as one without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("maia")  # of which torch knows the name and no more: no kernels, no fused optimizers
MIXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::copy_"}  # is allowed


class DeviceError(RuntimeError):
    """What torch would raise of a tensor on the wrong device, or of a kind that the device lacks."""


class There(Tensor):
    """A tensor on the pretended device; ``inner`` has its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> There:
        if inner.dtype == torch.float64:
            raise DeviceError("the device has no float64")
        made: There = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype
        )
        made.inner = inner
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = There(self.inner.detach().clone()).requires_grad_(self.requires_grad)
        return as_parameter(copied) if isinstance(self, torch.nn.Parameter) else copied

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [item for item in leaves((*args, *kwargs.values())) if isinstance(item, Tensor)]
        elsewhere = [t for t in tensors if not isinstance(t, There) and t.ndim]
        if elsewhere and func._schema.name not in MIXING:
            raise DeviceError(f"{func} of tensors on the device and on the CPU: {[tuple(t.shape) for t in tensors]}")
        found = func(*each(inside, args), **{name: each(inside, item) for name, item in kwargs.items()})
        if not func._schema.returns:
            return None
        first = func._schema.arguments[0].alias_info if func._schema.arguments else None
        if first is not None and first.is_write:
            return args[0]  # changed in place
        return each(lambda item: There(item) if isinstance(item, Tensor) else item, found)


def as_parameter(tensor: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor, tensor.requires_grad)


def leaves(items: Iterable[Any]) -> Iterator[Any]:
    """What lists and tuples hold, and those within them."""
    for item in items:
        if isinstance(item, list | tuple):
            yield from leaves(item)
        else:
            yield item


def each(change: Callable[[Any], Any], item: Any) -> Any:
    """The same lists and tuples with everything in them changed; torch's own tree_map takes four times as long."""
    return type(item)(each(change, part) for part in item) if isinstance(item, list | tuple) else change(item)


def inside(item: Any) -> Any:
    """The tensor within, and the CPU for the device."""
    if isinstance(item, There):
        return item.inner
    return torch.device("cpu") if item == DEVICE and isinstance(item, torch.device) else item


class Accelerator(TorchFunctionMode):
    """Within, tensors can be made on the pretended device, moved to it, and moved back."""

    def __enter__(self) -> Any:
        # A model that moves gets new parameters: the old ones cannot change their kind.
        self.before = torch.__future__.get_overwrite_module_params_on_conversion()
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.__future__.set_overwrite_module_params_on_conversion(self.before)
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        own = args[0] if args and isinstance(args[0], Tensor) else None
        if func is Tensor.cpu:
            return self.moved(own, torch.device("cpu"), {})
        if func is Tensor.to:
            return self.to(own, args[1:], kwargs)
        if func is Tensor.tolist and isinstance(own, There):
            return own.inner.tolist()
        if func is torch.nn.functional.one_hot and isinstance(own, There):
            return There(func(own.inner, *args[1:], **kwargs))  # torch makes a row of numbers within, out of sight
        if func is Tensor.numpy and isinstance(own, There):
            raise DeviceError("a tensor on the device has no numpy array")
        if (place := kwargs.pop("device", None)) is None:
            return func(*args, **kwargs)
        found = func(*args, **kwargs)  # of the kind of its first tensor, or on the CPU
        return self.moved(found, torch.device(place), {})

    def to(self, own: Any, args: Any, kwargs: Any) -> Tensor:
        places = [torch.device(a) for a in (*args, kwargs.get("device")) if isinstance(a, torch.device | str)]
        places += [a.device for a in (*args, kwargs.get("other")) if isinstance(a, Tensor)]
        dtypes = [a for a in (*args, kwargs.get("dtype")) if isinstance(a, torch.dtype)]
        dtypes += [a.dtype for a in args if isinstance(a, Tensor)]
        rest = {k: v for k, v in kwargs.items() if k in ("copy", "memory_format") and v is not None}
        rest |= {"dtype": dtypes[0]} if dtypes else {}
        return self.moved(own, places[0] if places else own.device, rest)

    @staticmethod
    def moved(own: Any, place: torch.device, rest: dict[str, Any]) -> Any:
        if isinstance(own, There) == (place.type == DEVICE.type):
            return own.to(**rest) if rest else own
        there = isinstance(own, There)
        if own.requires_grad and torch.is_grad_enabled() and own.grad_fn is not None:
            raise DeviceError("a tensor that is learned from is moved: its gradient would be lost here")
        plain = (own.inner if there else own).detach()
        plain = (plain.to(**rest) if rest else plain).clone()
        return plain if there else There(plain)
