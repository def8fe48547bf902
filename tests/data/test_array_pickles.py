"""Pickles of arrays are read by hand: what NumPy writes, as NumPy reads it, and nothing that could run code."""

from __future__ import annotations

import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protea.core.errors import DataError
from protea.data import array_pickles
from protea.data.array_pickles import PickledArray, read_array_pickle

ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
    np.arange(5, dtype=">i4"),
    np.array([True, False]),
    np.empty((0, 3), np.float16),
    np.array(7, np.uint8),
]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_arrays_are_read_as_numpy_reads_them(array: np.ndarray[Any, Any], protocol: int) -> None:
    found = read_array_pickle(pickle.dumps(array, protocol), "here")
    assert isinstance(found, PickledArray) and found.numbers is not None and found.shape == array.shape
    assert found.numbers.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found.numbers, array)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_and_shared_ones_are_read(protocol: int) -> None:
    shared = [1, -2, 1 << 70]
    value = {"a": (None, True, 2.5, b"x", "é", ()), "b": [shared, shared], "c": {"d": {}}, "e": (1, 2), "f": (1, 2, 3)}
    found = read_array_pickle(pickle.dumps(value, protocol), "here")
    assert found == value and found["b"][0] is found["b"][1]
    number = read_array_pickle(pickle.dumps([np.int64(3), np.float32(0.5)], protocol), "here")
    assert number == [3, 0.5] and type(number[0]) is int


def test_an_array_of_objects_keeps_its_items_apart() -> None:
    rows = np.empty((2, 2), object)
    rows[:] = [[[1, 2], 2], [[3, 4], 1]]
    found = read_array_pickle(pickle.dumps(rows, 4), "here")
    assert found.numbers is None and found.shape == (2, 2) and found.items == [[1, 2], 2, [3, 4], 1]


class Runs:
    """A pickle of it makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_that_a_pickle_asks_for_is_run(tmp_path: Path, protocol: int) -> None:
    array = np.empty((), object)
    array[()] = {"x": np.zeros((2, 2)), "y": np.zeros(2), "z": Runs(tmp_path / "made")}
    content = pickle.dumps(array, protocol)
    with pytest.raises(DataError, match=r"here .*(nothing was run|damaged)"):
        read_array_pickle(content, "here")
    assert not (tmp_path / "made").exists()
    pickle.loads(content)  # which does run it
    assert (tmp_path / "made").is_dir()


NAME = b"\x8c"


def word(text: str) -> bytes:
    return NAME + bytes([len(text)]) + text.encode()


HOSTILE = {
    "a function of the system": b"cos\nsystem\n(X\x04\x00\x00\x00truetR.",
    "the same by its stack": b"\x80\x04" + word("os") + word("system") + b"\x93" + word("true") + b"\x85R.",
    "builtins": b"\x80\x04" + word("builtins") + word("eval") + b"\x93" + word("1") + b"\x85R.",
    "an attribute behind a dot": b"\x80\x04" + word("numpy") + word("core.os.system") + b"\x93" + word("1") + b"\x85R.",
    "another function of numpy": b"cnumpy\nload\n(X\x01\x00\x00\x00xtR.",
    "numpy's own reader of files": b"cnumpy.core.multiarray\nfromfile\n(X\x01\x00\x00\x00xtR.",
    "a class called by INST": b"(S'true'\nios\nsystem\n.",
    "a class called by OBJ": b"(cos\nsystem\nS'true'\no.",
    "a class made by NEWOBJ": b"\x80\x02cbuiltins\nobject\n)\x81.",
    "NEWOBJ of a name that is allowed": b"\x80\x02cnumpy\ndtype\n)\x81.",
    "a state set on a name": b"\x80\x02cnumpy\ndtype\n}b.",
    "a state set on a list": b"\x80\x02]}b.",
    "something from outside": b"\x80\x02P1\n.",
    "something from outside by the stack": b"\x80\x02K\x01Q.",
    "a registered extension": b"\x80\x02\x82\x01.",
    "a buffer from outside": b"\x80\x05\x97.",
    "a call of the array itself": b"\x80\x02cnumpy\nndarray\n(K\x02tR.",
    "a call of a number": b"\x80\x02K\x01)R.",
    "a call of a list": b"\x80\x02])R.",
    "an array of structures": b"\x80\x02cnumpy\ndtype\n(X\x02\x00\x00\x00V8K\x00K\x01tR.",
    "an encoding with code of its own": b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x06\x00\x00\x00rot_13tR.",
    "a set": pickle.dumps({1, 2}, 4),
    "a class of the library": pickle.dumps(OrderedDict(a=1), 4),
    "a type": pickle.dumps(int, 4),
    "a number as a key": pickle.dumps({1: 2}, 4),
    "nothing": b"",
    "no end": b"\x80\x04]",
    "two values": b"\x80\x04]].",
    "a mark as a value": b"\x80\x04(.",
    "no mark": b"\x80\x04]K\x01e.",
    "nothing to append to": b"\x80\x04K\x01a.",
    "nothing remembered": b"\x80\x04h\x05.",
    "no pickle": b"<html></html>",
    "more bytes than there are": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_array_of_numbers_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^here "):
        read_array_pickle(content, "here")


def array_with(state: bytes, again: bytes = b"") -> bytes:
    """A pickle of an array with this state, which NumPy may not have written."""
    made = b"\x80\x03cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R"
    return made + state + b"b" + again + b"."


def kind(code: str) -> bytes:
    made = b"cnumpy\ndtype\nX" + struct.pack("<I", len(code)) + code.encode() + b"K\x00K\x01\x87R"
    return made + b"(K\x03X\x01\x00\x00\x00<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"


def state(shape: bytes, of: bytes, content: bytes, version: int = 1) -> bytes:
    return b"(K" + bytes([version]) + shape + of + b"\x89" + content + b"t"


FOUR = b"C\x04\x01\x00\x00\x00"


def test_the_arrays_made_by_hand_here_are_read() -> None:
    found = read_array_pickle(array_with(state(b"K\x01\x85", kind("i4"), FOUR)), "here")
    assert found.numbers.tolist() == [1]


@pytest.mark.parametrize(
    "content",
    [
        array_with(state(b"K\x02\x85", kind("i4"), FOUR)),
        array_with(state(b"J\xff\xff\xff\xff\x85", kind("i4"), FOUR)),
        array_with(state(b"M\xff\xffM\xff\xffM\xff\xff\x87", kind("i4"), FOUR)),
        array_with(state(b"]", kind("i4"), FOUR)),
        array_with(state(b"X\x01\x00\x00\x00a\x85", kind("i4"), FOUR)),
        array_with(state(b"\x88\x85", kind("i1"), b"C\x01a")),
        array_with(state(b"K\x01\x85", kind("O"), FOUR)),
        array_with(state(b"K\x02\x85", kind("O"), b"]")),
        array_with(state(b"K\x01\x85", kind("i4"), b"]")),
        array_with(state(b"K\x01\x85", b"N", FOUR)),
        array_with(state(b"K\x01\x85", kind("i4"), FOUR, version=2)),
        array_with(state(b"K\x01\x85", kind("i4"), FOUR), again=state(b"K\x01\x85", kind("i4"), FOUR) + b"b"),
        array_with(state(b"K\x01\x85", kind("f3"), FOUR)),
        array_with(state(b"K\x01\x85", kind("U1"), FOUR)),
        array_with(b"}"),
    ],
    ids=[
        *("size", "negative", "huge", "list", "name", "bool", "objects", "few objects", "a list of numbers"),
        *("no type", "version", "twice", "f3", "U1", "a dict"),
    ],
)
def test_an_array_whose_parts_do_not_fit_is_refused(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^here "):
        read_array_pickle(content, "here")


def test_a_pickle_damaged_at_any_byte_is_read_or_refused() -> None:
    array = np.empty((), object)
    array[()] = {"x": np.ones((2, 3), np.float32), "y": np.arange(2)}
    content = pickle.dumps(array, 4)
    for place in range(len(content)):
        for bits in (0x01, 0x10, 0x80, 0xFF):
            spoilt = content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :]
            try:
                read_array_pickle(spoilt, "here")
            except DataError as error:
                assert str(error).startswith("here ")
        with pytest.raises(DataError):
            read_array_pickle(content[:place], "here")


def test_a_list_within_itself_and_deep_ones_do_no_harm() -> None:
    endless: list[Any] = []
    endless.append(endless)
    found = read_array_pickle(pickle.dumps(endless, 4), "here")
    assert found[0] is found
    deep = b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b"."
    assert len(read_array_pickle(deep, "here")) == 1


def test_the_steps_of_a_pickle_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_pickles, "MOST", 50)
    with pytest.raises(DataError, match=r"has more than 50 steps"):
        read_array_pickle(pickle.dumps(list(range(100)), 4), "here")
