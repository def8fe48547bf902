"""A model and its answering rule as a list of torch's own operations, which plain JSON can hold.

``torch.export`` follows a batch of any size through the model and the rule, and gives the operations that were done.
They are written in two forms: by torch itself (``program.pt2``), for ``torch.export.load``, and as JSON with the
tensors in safetensors files.  Protea reads only the latter: what it runs are functions of core ATen by their names, and
nothing in such a file can be code.
"""

from __future__ import annotations

import logging
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, default_decompositions, export, save
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from protea.core.errors import ConfigError, ProteaError
from protea.core.message import Named

MORE = frozenset({"linalg_vector_norm", "lstm"})  # operations that are allowed besides those of core ATen
PYTHON: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("getitem", "add", "sub", "mul", "floordiv", "neg")
}
KINDS: dict[str, type] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
    "device": torch.device,
}
NAME = re.compile(r"(aten|python)\.([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?")
CLOSE = 1e-4  # largest difference of a probability between a program and what it was made of


class TraceError(ProteaError):
    """A model or rule that torch.export cannot follow, with the reason."""


@dataclass(frozen=True)
class TensorProgram:
    """Operations in the order in which they are done; each has a name, by which later ones refer to what it gave."""

    input: str
    tensors: Mapping[str, str]  # name of an operand -> name among ``values``
    steps: list[dict[str, Any]]
    output: str
    values: Named  # what the operations need: weights and constants

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Run the operations on a batch."""
        known: dict[str, Any] = {name: self.values[value] for name, value in self.tensors.items()}
        known[self.input] = x
        for step in self.steps:
            arguments = [_argument(value, known) for value in step["args"]]
            named = {key: _argument(value, known) for key, value in step["kwargs"].items()}
            known[step["name"]] = _operation(step["op"])(*arguments, **named)
        found: Tensor = known[self.output]
        return found

    def to_table(self) -> dict[str, Any]:
        """Return the operations for JSON, without the tensors."""
        return {"input": self.input, "tensors": dict(self.tensors), "steps": self.steps, "output": self.output}

    @classmethod
    def from_table(cls, table: Mapping[str, Any], values: Named) -> Self:
        """Read what :meth:`to_table` wrote; raise :class:`ConfigError` for operations or tensors that it may not have.

        ``values`` are the tensors of the files beside it.
        """
        try:
            found = cls(table["input"], dict(table["tensors"]), list(table["steps"]), table["output"], values)
            known = {found.input, *found.tensors}
            if lost := [name for name in found.tensors.values() if name not in values]:
                raise ConfigError(f"the program needs a tensor {lost[0]!r}, which is not there.")
            for step in found.steps:
                _operation(step["op"])
                if lost := sorted(_referred([step["args"], step["kwargs"]]) - known):
                    raise ConfigError(f"{step['name']} needs {lost[0]}, which nothing before it gives.")
                known.add(step["name"])
            if found.output not in known:
                raise ConfigError(f"nothing gives the output {found.output!r}.")
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the program is not one: {error!r}.") from error
        return found

    @classmethod
    def of(cls, exported: ExportedProgram) -> Self:
        """Write down what torch.export found; raise :class:`TraceError` for operations that JSON cannot hold."""
        signature, nodes = exported.graph_signature, list(exported.graph.nodes)
        named = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        (output,) = (node.args[0][0] for node in nodes if node.op == "output")
        wanted, steps = {output.name}, list[dict[str, Any]]()
        for node in reversed(nodes):
            if node.op != "call_function" or node.name not in wanted:  # assertions about types are for nobody
                continue
            step = {"name": node.name, "op": _name_of(node.target)}
            step["args"] = [_written(value) for value in node.args]
            step["kwargs"] = {key: _written(value) for key, value in node.kwargs.items()}
            wanted |= _referred([step["args"], step["kwargs"]])
            steps.insert(0, step)
        tensors = {name: value for name, value in named.items() if name in wanted}
        stored = {**exported.state_dict, **exported.constants}
        values = {value: stored[value].detach().contiguous().clone() for value in tensors.values()}
        (given,) = signature.user_inputs
        return cls(str(given), tensors, steps, output.name, values)


def traced(module: nn.Module, x: Tensor) -> ExportedProgram:
    """Let torch.export follow a batch of any size through a module; raise :class:`TraceError` with its reason."""
    try:
        with quiet(), torch.no_grad():
            shapes = ({0: Dim.DYNAMIC},)
            parts = default_decompositions()
            parts.pop(torch.ops.aten.lstm.input, None)  # whose parts would be hundreds of steps for each word
            found: ExportedProgram = export(module.eval(), (x,), dynamic_shapes=shapes).run_decompositions(parts)
    except Exception as error:  # of many kinds, also what the model or the rule raises
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise TraceError(f"torch.export cannot follow it: {why[:300]}") from error
    sizes = free_symbols([value for node in found.graph.nodes if (value := node.meta.get("val")) is not None])
    for size in list(found.range_constraints):
        if size in sizes:  # torch.cdist alone would allow no more than 25 samples
            found.range_constraints[size] = ValueRanges(1, int_oo)
        else:  # left from following the module: whoever loads the program would be warned of it
            del found.range_constraints[size]
    found._example_inputs = None  # the one part that would be pickled
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back what torch warns and logs of itself; what goes wrong is in its errors."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def to_pt2(exported: ExportedProgram) -> bytes:
    """Return the program in torch's own format, as ``torch.export.save`` writes it, without any pickle."""
    found = BytesIO()
    with quiet():
        save(exported, found)
    return found.getvalue()


@torch.no_grad()
def largest_difference(program: Callable[[Tensor], Tensor], original: nn.Module, x: Tensor) -> float:
    """Return by how much probabilities differ at most, over batches of one, of a few and of all samples."""
    batches = (x[:1], x[:3], x)
    differences = [(program(batch) - original(batch)).abs().max() for batch in batches]
    return float(torch.stack(differences).max())  # nan if any is


def _operation(name: str) -> Callable[..., Any]:
    """Find a function by the name that a program gives it; raise :class:`ConfigError` unless it is an allowed one."""
    found = NAME.fullmatch(name)
    if found is not None and found[1] == "python" and found[3] is None and found[2] in PYTHON:
        return PYTHON[found[2]]
    if found is not None and found[1] == "aten" and found[3] is not None:
        function = getattr(getattr(torch.ops.aten, found[2], None), found[3], None)
        if function is not None and _allowed(function):
            allowed: Callable[..., Any] = function
            return allowed
    raise ConfigError(f"the program asks for {name!r}, which is not an operation that Protea runs.")


def _allowed(function: Any) -> bool:
    core = torch.Tag.core in function.tags or function.overloadpacket.__name__ in MORE
    return core and not function._schema.is_mutable


def _name_of(target: Any) -> str:
    """Return the name by which :func:`_operation` finds a function again."""
    name = f"aten.{target.overloadpacket.__name__}.{target._overloadname}" if hasattr(target, "_schema") else ""
    name = name or next((f"python.{key}" for key, function in PYTHON.items() if function is target), str(target))
    try:
        if _operation(name) is target:
            return name
    except ConfigError:
        pass
    raise TraceError(f"it uses {target}, which is not an operation of core ATen.")


def _written(value: Any) -> Any:
    """Turn an argument into JSON; what JSON has no word for becomes a table of one entry."""
    if isinstance(value, torch.fx.Node):
        return {"of": value.name}
    if isinstance(value, list | tuple):
        return [_written(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    for kind, type_ in KINDS.items():
        if isinstance(value, type_):
            return {kind: str(value).removeprefix("torch.")}
    raise TraceError(f"an operation has an argument of type {type(value).__name__}.")


def _argument(value: Any, known: Mapping[str, Any]) -> Any:
    """Read an argument that :func:`_written` wrote."""
    if isinstance(value, list):
        return [_argument(each, known) for each in value]
    if not isinstance(value, dict):
        return value
    ((kind, word),) = value.items()
    if kind == "of":
        return known[word]
    if kind == "float" and word in ("inf", "-inf", "nan"):
        return float(word)
    if kind == "device" and word == "cpu":
        return torch.device("cpu")
    found = getattr(torch, word, None)
    if kind not in KINDS or not isinstance(found, KINDS[kind]):
        raise ConfigError(f"the program has an argument {value!r}, which means nothing.")
    return found


def _referred(value: Any) -> set[str]:
    """Return the names that arguments refer to."""
    if isinstance(value, list):
        return set().union(*map(_referred, value)) if value else set()
    if isinstance(value, dict):
        if value.keys() == {"of"}:
            return {value["of"]}
        return set().union(*map(_referred, value.values())) if value else set()
    return set()
