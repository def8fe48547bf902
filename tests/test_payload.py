from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from protea import Payload, Prototypes, Weights
from protea.errors import PayloadError
from protea.payload import from_bytes, nbytes, pack, to_bytes, unpack


@dataclass(frozen=True)
class Mixed(Payload):
    prototypes: Prototypes
    weights: Weights
    table: Mapping[str, Tensor]
    logits: Tensor
    extra: Tensor | None = None


names = st.text("abc._0", min_size=1, max_size=6)
sizes = st.lists(st.integers(0, 4), min_size=0, max_size=3).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16])


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    return torch.arange(60).reshape(5, 12)[: draw(st.integers(0, 5))].to(draw(dtypes)).reshape(-1)


@st.composite
def mixed(draw: st.DrawFn) -> Mixed:
    classes = draw(st.integers(1, 5))
    counts = torch.tensor(draw(st.lists(st.integers(0, 3), min_size=classes, max_size=classes)), dtype=torch.float32)
    vectors = torch.arange(classes * 2, dtype=torch.float32).reshape(classes, 2) * (counts > 0).unsqueeze(1)
    return Mixed(
        Prototypes(vectors, counts),
        Weights(draw(st.dictionaries(names, tensors(), min_size=1, max_size=3))),
        draw(st.dictionaries(names, tensors(), max_size=3)),
        draw(tensors()),
        draw(st.none() | tensors()),
    )


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(t, b[k]) and t.dtype == b[k].dtype for k, t in a.items())


@given(mixed())
def test_any_payload_survives_the_way_to_bytes_and_back(payload: Mixed) -> None:
    flat = pack(payload)
    arrived, about = from_bytes(to_bytes(flat, client=3, note="ü"))
    assert same(flat, arrived) and about == {"client": 3, "note": "ü"}
    again = unpack(Mixed, arrived)
    assert again is not None and same(flat, pack(again))
    assert nbytes(flat) == sum(len(t.flatten().view(torch.uint8)) if t.numel() else 0 for t in flat.values())


@given(st.binary(max_size=200))
def test_bytes_that_are_no_message_are_refused(noise: bytes) -> None:
    with pytest.raises(PayloadError):
        from_bytes(noise)


@given(mixed(), st.data())
def test_a_cut_message_is_refused(payload: Mixed, data: st.DataObject) -> None:
    message = to_bytes(pack(payload))
    with pytest.raises(PayloadError):
        from_bytes(message[: data.draw(st.integers(0, len(message) - 1))])


def test_a_packed_payload_shares_no_memory_with_its_source() -> None:
    weight = torch.ones(3)
    flat = pack(Weights({"w": weight}))
    weight.zero_()
    assert flat["tensors.w"].tolist() == [1, 1, 1]


def test_nothing_stands_for_none() -> None:
    assert pack(None) == {} and unpack(Weights, {}) is None


def test_names_that_are_not_declared_are_refused() -> None:
    flat = pack(Prototypes(torch.ones(1, 1), torch.ones(1)))
    with pytest.raises(PayloadError, match="vectors and counts"):
        unpack(Prototypes, {**flat, "more": torch.ones(1)})
    with pytest.raises(PayloadError, match="Weights has no 'more'"):
        unpack(Weights, {"tensors.a": torch.ones(1), "more": torch.ones(1)})


def test_a_missing_field_is_refused() -> None:
    @dataclass(frozen=True)
    class Two(Payload):
        a: Tensor
        b: Tensor

    with pytest.raises(PayloadError, match=r"Two.b must be one tensor; found nothing"):
        Two.from_flat({"a": torch.ones(1)})


def test_only_payloads_travel() -> None:
    with pytest.raises(PayloadError, match="dict cannot travel"):
        pack({"a": torch.ones(1)})  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="only tensors travel"):
        pack(Weights({"a": "text"}))  # type: ignore[dict-item]


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(PayloadError, match=r"Weights.tensors.w holds values that are not finite"):
        Weights({"w": torch.tensor([1.0, torch.inf])}).check(1, 1)


def test_two_payloads_of_one_name_are_refused() -> None:
    """A checkpoint names what it holds by the class name alone."""
    with pytest.raises(TypeError, match="a payload Prototypes already, in protea"):
        type("Prototypes", (Payload,), {})
