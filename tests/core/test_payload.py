from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from protea import Payload, Prototypes, Weights
from protea.core.errors import PayloadError
from protea.core.message import from_bytes, nbytes, to_bytes
from protea.core.payload import pack, refuse_large, unpack


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


def message(header: Mapping[str, Any] | str, data: bytes = b"") -> bytes:
    """A message with this header, right or wrong; given as values it also says something about itself."""
    text = header if isinstance(header, str) else json.dumps({"__metadata__": {"about": "{}"}, **header})
    return len(text.encode()).to_bytes(8, "little") + text.encode() + data


def one(dtype: str, shape: list[int], start: int = 0, end: int = 0) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def said(about: str) -> str:
    return json.dumps({"__metadata__": {"about": about}})


REFUSED = {
    "too short": (b"1234567", "7 bytes with a header"),
    "a header longer than the message": ((99).to_bytes(8, "little") + b"{}", "a header of 99"),
    "a header above the cap": (message(" " * (1 << 20) + "{}"), "1048576 at most"),
    "no JSON": (message("{'a'}"), "cannot be read as JSON"),
    "no UTF-8": ((2).to_bytes(8, "little") + b"\xff\xff", "cannot be read as JSON"),
    "very deep JSON": (message("[" * 100_000), "cannot be read as JSON"),
    "a header that is a list": (message("[]"), "without 'about'"),
    "nothing beside the tensors": (message("{}"), "without 'about'"),
    "more beside the tensors": (message('{"__metadata__": {"about": "{}", "more": ""}}'), "without 'about'"),
    "a number beside the tensors": (message('{"__metadata__": {"about": 3}}'), "without 'about'"),
    "about as a list": (message(said("[1]")), "is a list, not an object"),
    "about as no JSON": (message(said("{")), "cannot be read as JSON"),
    "about very deep": (message(said('{"a":' * 100_000)), "cannot be read as JSON"),
    "about with a long number": (message(said('{"a": ' + "9" * 5000 + "}")), "cannot be read as JSON"),
    "about with a name twice": (message(said('{"a": 1, "a": 2}')), "a name occurs twice"),
    "a tensor twice": (message(said("{}")[:-1] + ', "a": 1, "a": 1}'), "a name occurs twice"),
    "a name with a line break": (message({"a\nb": one("U8", [0])}), r"the name 'a\\nb'"),
    "a name that is empty": (message({"": one("U8", [0])}), "the name ''"),
    "a long name": (message({"x" * 501: one("U8", [0])}), r"the name 'xxx.*xxx\.\.\., not 500"),
    "very many tensors": (message({f"{n}": one("U8", [0]) for n in range(10_001)}), "10001 tensors arrived"),
    "complex numbers": (message({"a": one("C64", [1], 0, 8)}, bytes(8)), "complex64, which does not travel"),
    "numbers of one byte": (message({"a": one("F8_E5M2", [1], 0, 1)}, b"1"), "float8_e5m2, which does not travel"),
    "a kind of number torch lacks": (message({"a": one("F4", [2], 0, 1)}, b"1"), "cannot be read as tensors"),
    "no kind of number": (message({"a": one("X", [1], 0, 1)}, b"1"), "cannot be read as tensors"),
    "truth of seven": (message({"a": one("BOOL", [2], 0, 2)}, b"\1\7"), "neither 0 nor 1"),
    "nine axes": (message({"a": one("U8", [1] * 9, 0, 1)}, b"1"), "9 axes"),
    "nothing, but much of it": (message({"a": one("F32", [0, 2**40])}), "the longest of 1099511627776"),
    "more than torch can count": (message({"a": one("F32", [0, 2**62, 2**62])}), "cannot be read as tensors"),
    "more than a machine word": (message({"a": one("F32", [2**63, 0])}), "cannot be read as tensors"),
    # These are checked by safetensors, and nowhere here.
    "a product that overflows": (message({"a": one("F32", [2**32, 2**32])}), "overflow"),
    "a size below zero": (message({"a": one("F32", [-1, 0])}), "cannot be read as tensors"),
    "a size that is no whole number": (message({"a": {**one("U8", []), "shape": [0.0]}}), "cannot be read as tensors"),
    "a shape that is not its bytes": (message({"a": one("F32", [2], 0, 4)}, bytes(4)), "cannot be read as tensors"),
    "a gap": (message({"a": one("U8", [1], 1, 2)}, b"ab"), "invalid offset"),
    "an overlap": (message({"a": one("U8", [2], 0, 2), "b": one("U8", [2], 1, 3)}, b"abc"), "invalid offset"),
    "bytes twice": (message({"a": one("U8", [2], 0, 2), "b": one("U8", [2], 0, 2)}, b"ab"), "invalid offset"),
    "bytes left over": (message({"a": one("U8", [1], 0, 1)}, b"ab"), "not fully covered"),
    "bytes that are missing": (message({"a": one("U8", [2], 0, 2)}, b"a"), "cannot be read as tensors"),
}


@pytest.mark.parametrize(("found", "complaint"), REFUSED.values(), ids=REFUSED)
def test_a_message_that_is_not_as_declared_is_refused(found: bytes, complaint: str) -> None:
    with pytest.raises(PayloadError, match=complaint) as refusal:
        from_bytes(found)
    assert len(str(refusal.value)) < 500


def test_a_message_in_order_is_read() -> None:
    named, about = from_bytes(message({"a": one("F32", [0, 512]), "b": one("BOOL", [2], 0, 2)}, b"\0\1"))
    assert named["a"].shape == (0, 512) and named["b"].tolist() == [False, True] and about == {}


def test_a_message_above_the_limit_is_refused_unread() -> None:
    whole = to_bytes(pack(Weights({"w": torch.ones(100)})))
    assert from_bytes(whole, limit=len(whole))[1] == {}
    with pytest.raises(PayloadError, match=f"of {len(whole)} bytes arrived; {len(whole) - 1} at most"):
        from_bytes(whole, limit=len(whole) - 1)
    with pytest.raises(PayloadError, match="6 bytes arrived; 5 at most"):
        from_bytes(b"rubble", limit=5)


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
anything = st.recursive(
    plain | st.sampled_from(["F32", "BOOL", "about", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "about", "a"]), inner, max_size=3)
    ),
)


@given(st.dictionaries(st.sampled_from(["__metadata__", "a", "b"]) | st.text(max_size=3), anything, max_size=4))
def test_any_header_is_read_or_refused(header: dict[str, Any]) -> None:
    try:
        named, _ = from_bytes(message(json.dumps(header)))
    except PayloadError:
        return
    assert all(tensor.numel() == 0 for tensor in named.values())  # no data came


@given(
    st.dictionaries(st.text(max_size=5), plain | st.dictionaries(st.text(max_size=5), plain, max_size=2), max_size=3)
)
def test_what_is_said_about_the_tensors_arrives_as_it_was(about: dict[str, Any]) -> None:
    assert from_bytes(message(said(json.dumps(about)))) == ({}, about)


@given(
    st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=6),
    st.lists(st.integers(0, 10**6), min_size=6, max_size=6),
)
def test_prototypes_survive_the_way_and_are_accepted(vectors: list[list[float]], counts: list[int]) -> None:
    known = torch.tensor(counts[: len(vectors)], dtype=torch.float32)
    sent = Prototypes(torch.tensor(vectors) * (known > 0).unsqueeze(1), known)
    named, _ = from_bytes(to_bytes(pack(sent)))
    arrived = unpack(Prototypes, named)
    assert arrived is not None
    arrived.check(len(vectors), 3)
    assert torch.equal(arrived.vectors, sent.vectors) and torch.equal(arrived.counts, sent.counts)


@pytest.mark.parametrize(
    ("vectors", "counts"),
    [
        (torch.empty(0, 1 << 20), torch.zeros(1 << 14)),
        (torch.zeros(1, 1 << 14), torch.tensor([1.0]).repeat(1 << 14).cumsum(0).eq(1).float()),
    ],
    ids=["none present", "one present"],
)
def test_prototypes_that_would_fill_the_memory_are_refused(vectors: Tensor, counts: Tensor) -> None:
    """A few kilobytes that stand for more than 2^26 numbers."""
    with pytest.raises(PayloadError, match="may hold 67108864 numbers at most"):
        Prototypes.from_flat({"vectors": vectors, "counts": counts})


@pytest.mark.parametrize("count", [0.5, 1e-40, 2.5, 2e9, 3e38])
def test_counts_are_whole_numbers_of_samples(count: float) -> None:
    with pytest.raises(PayloadError, match="no whole number, or above 1e"):
        Prototypes(torch.ones(1, 1), torch.tensor([count])).check(1, 1)


def test_the_longest_row_is_measured() -> None:
    named = {"a": torch.tensor([[0.0, 1.0], [3.0, 4.0]]), "b": torch.tensor([9])}
    refuse_large(named, 5.0)
    with pytest.raises(PayloadError, match=r"'a' has a row of norm 5; at most 4.9 is accepted"):
        refuse_large(named, 4.9)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([3e38, 3e38]),
        torch.tensor([1e300], dtype=torch.float64),
        torch.tensor([6e4, 6e4], dtype=torch.float16),
        torch.tensor(-1e9),
        torch.tensor([[1.0], [-torch.inf]]),
    ],
)
def test_large_rows_are_refused_in_any_precision(tensor: Tensor) -> None:
    with pytest.raises(PayloadError, match="'x' has a row of norm"):
        refuse_large({"x": tensor}, 8e4)


def test_a_norm_beyond_float32_is_still_a_number() -> None:
    refuse_large({"x": torch.tensor([3e38, 3e38]), "none": torch.empty(1 << 20, 0)}, 4.3e38)


def test_floats_that_have_no_norm_are_refused() -> None:
    with pytest.raises(PayloadError, match="float8_e4m3fn, which does not travel"):
        unpack(Weights, {"tensors.x": torch.ones(2).to(torch.float8_e4m3fn)})


def test_tensors_without_a_name_are_refused() -> None:
    with pytest.raises(PayloadError, match="tensors with names"):
        unpack(Weights, {"tensors": torch.ones(1)})
