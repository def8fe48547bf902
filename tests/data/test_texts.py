"""Texts, and what models see of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from protea.core.errors import ConfigError
from protea.data.dataset import Dataset
from protea.data.federated import Federated
from protea.data.mapped_file import read_mapped, write_mapped
from protea.data.partition.split import Share
from protea.data.texts import Texts
from protea.data.views import Blank, view_samples, view_texts
from protea.models.text import HashedWords

SAID = ("a", "", "Grüße, 世界", "b c " * 500)


class Lengths:
    """How many characters a text has; counts how often it was asked."""

    key: str = "lengths"
    shape: tuple[int, ...] = (1,)

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, texts: Sequence[str]) -> Tensor:
        self.asked.append(len(texts))
        return torch.tensor([[float(len(text))] for text in texts])


def texts(said: Sequence[str] = SAID) -> Dataset:
    return Dataset(Texts.of(said), torch.arange(len(said)) % 2, ("no", "yes"))


def test_texts_come_back_as_they_were():
    found = Texts.of(SAID)
    assert len(found) == 4 and [found[row] for row in range(4)] == list(SAID)
    assert list(found.take(torch.tensor([2, 0]))) == [SAID[2], SAID[0]]
    assert len(Texts.of([])) == 0


def test_a_checksum_is_of_these_texts_in_this_order():
    def digest(*said: str) -> str:
        found = Texts.of(said)
        return found.digest(torch.arange(len(found)))

    assert digest("ab", "c") == digest("ab", "c")
    assert len({digest("ab", "c"), digest("a", "bc"), digest("c", "ab"), digest("abc"), digest("ab", "c", "")}) == 5


def test_a_federation_of_texts_goes_through_a_file(tmp_path: Path):
    share = Share(torch.tensor([0, 3]), torch.tensor([1]), torch.tensor([2]))
    write_mapped(Federated(texts(), (share,), torch.tensor([1]), torch.tensor([2])), tmp_path / "data")
    found = read_mapped(tmp_path / "data")
    assert isinstance(found.dataset.x, Texts) and [found.dataset.x[row] for row in range(4)] == list(SAID)
    assert found.dataset.shape == () and found.shares[0].train.tolist() == [0, 3]


def test_a_view_is_made_once_and_then_read_from_disk(tmp_path: Path):
    dataset, view, rows = texts(), Lengths(), torch.tensor([3, 0, 1])
    assert isinstance(dataset.x, Texts)
    for _ in range(2):
        assert view_texts(dataset.x, rows, view, tmp_path).tolist() == [[2000.0], [1.0], [0.0]]
    assert view.asked == [3]
    view_texts(dataset.x, torch.tensor([0]), view, tmp_path)  # other texts
    view.key = "lengths of another kind"
    view_texts(dataset.x, rows, view, tmp_path)
    assert view.asked == [3, 1, 3] and len(list(tmp_path.iterdir())) == 3


def test_a_damaged_view_is_made_anew(tmp_path: Path):
    dataset, view, rows = texts(), Lengths(), torch.arange(4)
    assert isinstance(dataset.x, Texts)
    whole = view_texts(dataset.x, rows, view, tmp_path).clone()
    (file,) = tmp_path.iterdir()
    for content in (b"", b"garbage", file.read_bytes()[:-4]):
        file.write_bytes(content)
        assert torch.equal(view_texts(dataset.x, rows, view, tmp_path), whole)
    assert view.asked == [4] * 4


def test_a_folder_that_cannot_be_written_to_costs_time_only(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    dataset, view = texts(), Lengths()
    assert isinstance(dataset.x, Texts)
    for _ in range(2):
        assert view_texts(dataset.x, torch.tensor([0]), view, tmp_path / "file").tolist() == [[1.0]]
    assert view.asked == [1, 1]


def test_only_the_owner_can_read_what_is_kept(tmp_path: Path):
    view_texts(Texts.of(SAID), torch.arange(4), Lengths(), tmp_path / "views")
    assert (tmp_path / "views").stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in (tmp_path / "views").iterdir())


def test_samples_of_texts_have_their_labels_and_are_numbers(tmp_path: Path):
    found = view_samples(texts(), torch.tensor([1, 3]), Lengths(), cache=tmp_path)
    x, y = found.batch(torch.tensor([1, 0]))
    assert x.tolist() == [[2000.0], [0.0]] and y.tolist() == [1, 1] and len(found) == 2


def test_a_client_may_have_no_texts_at_all(tmp_path: Path):
    found = view_samples(texts(), torch.tensor([], dtype=torch.int64), Lengths(), cache=tmp_path)
    assert len(found) == 0 and found.batch(torch.tensor([], dtype=torch.int64))[0].shape == (0, 1)


def test_models_of_texts_and_samples_of_numbers_do_not_go_together():
    with pytest.raises(ConfigError, match="Choose models for texts"):
        view_samples(texts(), torch.arange(2), None)
    numbers = Dataset(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), ("no", "yes"))
    with pytest.raises(ConfigError, match="reads texts"):
        view_samples(numbers, torch.arange(2), Lengths())


def test_words_are_numbers_whatever_their_case_and_place():
    words = HashedWords(1000, 5)
    first, second, empty = words(["Fever, and fever!", "and\n\nFEVER", " \t "]).tolist()
    assert first[0] == first[3] == second[1] and first[2] == second[0] and first[1] not in (0, first[0])
    assert first[4] != 0 and second[2:] == [0, 0, 0] and empty == [0] * 5
    assert max(first) < 1000


def test_words_have_the_same_numbers_in_every_process():
    """By a checksum, not by Python's hash, which differs from process to process."""
    assert HashedWords(1000, 2)(["chest pain"]).tolist() == [[1 + 4215583671 % 999, 1 + 492519974 % 999]]


def test_a_server_without_a_model_sees_nothing_of_a_text():
    assert Blank()(SAID).tolist() == [[0.0]] * 4
