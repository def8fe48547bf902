"""A model's program as an ONNX file, which programs in many languages can run (extra ``onnx``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from protea.core.errors import ConfigError
from protea.runs.model_folder.program import CLOSE, TensorProgram, quiet


def to_onnx(exported: ExportedProgram, program: TensorProgram, x: Tensor, instead: str) -> tuple[bytes, float]:
    """Return a program as an ONNX file, and the largest difference of a probability on the random inputs ``x``.

    Raise :class:`ConfigError` where ONNX cannot hold the program, or its answers differ; ``instead`` is what to do.
    """
    refuse_without_onnx()
    try:
        with quiet(), torch.no_grad():
            found = torch.onnx.export(
                exported.run_decompositions({torch.ops.aten._cdist_forward.default: _distances}),
                (x[:3],),
                dynamo=True,
                verbose=False,
                input_names=["samples"],
                output_names=["probabilities"],
            )
            assert found is not None  # as it is if a file's name is given
            content: bytes = found.model_proto.SerializeToString()
    except Exception as error:  # of many kinds
        why = str(error.__cause__ or error).strip().splitlines()
        raise ConfigError(
            f"The model cannot be written as ONNX: {why[0][:300] if why else error!r}\n  {instead}"
        ) from error
    difference = largest_difference(content, program, x)
    if not difference <= CLOSE:
        raise ConfigError(
            f"The model as ONNX gives probabilities that differ by {difference:.2g} on random inputs.\n  {instead}"
        )
    return content, difference


def largest_difference(content: bytes, program: TensorProgram, x: Tensor) -> float:
    """Return by how much the answers of an ONNX file differ from a program's, over batches of one, a few and all."""
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (name,) = (each.name for each in session.get_inputs())
    differences = []
    for batch in (x[:1], x[:3], x):
        (answer,) = session.run(None, {name: batch.numpy()})
        differences.append((torch.from_numpy(answer) - program(batch)).abs().max())
    return float(torch.stack(differences).max())  # nan if any is


def refuse_without_onnx() -> None:
    """Raise :class:`ConfigError` if a package is not installed that writing or checking an ONNX file needs."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(f"--onnx needs the package {error.name}.  Install it: pip install -e '.[onnx]'") from error


def _distances(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """Return distances as torch.cdist does, by operations that ONNX has."""
    found: Tensor = torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, dim=-1)
    return found
