from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from protea import Weights
from protea.core.errors import PayloadError
from protea.core.lowrank import LowRank, rank_for_energy
from protea.core.message import from_bytes, to_bytes
from protea.core.payload import pack, unpack
from protea.core.rng import Streams


def randn(*shape: int, purpose: str = "weights") -> Tensor:
    return torch.randn(*shape, generator=Streams(3).generator(purpose))


def alone(tensor: Tensor) -> Weights:
    return Weights({"w": tensor})


def again(tensor: Tensor, energy: float = 0.95, **how: Any) -> Tensor:
    """What arrives of one tensor."""
    return LowRank.of(alone(tensor), energy, **how).weights(alone(tensor)).tensors["w"]


@pytest.mark.parametrize(
    ("values", "enough", "code"),
    [([1.0, 1.0], 2, 0), ([3.0, 1.0, 0.1], 2, 2), ([1.0], 1, 0), ([2.0, 1.0, 1.0], 3, 0)],
)
def test_how_many_singular_values_have_95_percent_of_the_squares(values: list[float], enough: int, code: int):
    """Squares 9, 1 and 0.01 are 10.01 in all: the first has 90 percent of it, the first two 99.9."""
    assert rank_for_energy(torch.tensor(values), 0.95) == enough
    assert rank_for_energy(torch.tensor(values), 0.95, "code") == code


def test_a_share_that_is_reached_exactly_is_enough_but_not_for_the_reference_code():
    assert rank_for_energy(torch.tensor([2.0, 1.0, 0.0]), 0.8) == 1
    assert rank_for_energy(torch.tensor([2.0, 1.0, 0.0]), 0.8, "code") == 2


def test_all_of_the_energy_takes_all_singular_values_and_nothing_takes_one():
    assert rank_for_energy(torch.tensor([3.0, 2.0, 1.0]), 1.0) == 3
    assert rank_for_energy(torch.zeros(3), 0.95) == 1


def test_several_matrices_have_one_rank_by_the_sum_of_their_squares():
    """(3, 1) and (1, 3): 10 and 10 of 20, so the first values have half."""
    both = torch.tensor([[3.0, 1.0], [1.0, 3.0]])
    assert rank_for_energy(both, 0.5) == 1 and rank_for_energy(both, 0.51) == 2


def test_a_matrix_of_rank_one_travels_as_two_vectors():
    """6 + 8 numbers, not 48."""
    matrix = torch.outer(torch.arange(1.0, 7.0), torch.arange(1.0, 9.0))
    sent = LowRank.of(alone(matrix), 0.95)
    assert sum(t.numel() for t in sent.flat().values()) == 14
    torch.testing.assert_close(sent.weights(alone(matrix)).tensors["w"], matrix)


@pytest.mark.parametrize("energy", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("matrices", ["rows", "kernels"])
def test_what_is_lost_is_at_most_the_energy_that_may_be_lost(energy: float, matrices: Any):
    for tensor in (randn(30, 40) @ torch.diag(0.8 ** torch.arange(40.0)), randn(8, 4, 9, 9)):
        lost = (again(tensor, energy, matrices=matrices) - tensor).square().sum()
        assert lost <= (1 - energy) * tensor.square().sum() * (1 + 1e-5)


def test_more_energy_loses_less():
    tensor = randn(30, 40) @ torch.diag(0.8 ** torch.arange(40.0))
    lost = [(again(tensor, energy) - tensor).norm().item() for energy in (0.5, 0.8, 0.95, 0.99)]
    assert lost == sorted(lost, reverse=True) and lost[0] > 2 * lost[-1] > 0


def test_a_matrix_that_needs_all_its_rank_stays_whole_to_the_bit_and_the_code_makes_zeros_of_it():
    assert torch.equal(again(torch.eye(5)), torch.eye(5))
    assert again(torch.eye(5), rule="code").abs().sum() == 0


def test_convolutions_of_one_pixel_are_zeros_by_the_code_and_one_matrix_otherwise():
    kernel = randn(20, 30, 1, 1)
    assert again(kernel, matrices="kernels", rule="code").abs().sum() == 0
    lost = (again(kernel, 0.5, matrices="rows") - kernel).square().sum()
    assert 0 < lost <= 0.5 * kernel.square().sum()


def test_kernels_of_three_by_three_become_zeros_by_the_code_once_the_energy_is_above_their_profile():
    """At random 0.711, 0.964 and 1: below 0.964 two values do, above it the code finds none among the first two."""
    kernel = torch.rand(64, 64, 3, 3, generator=Streams(3).generator("kernel")) - 0.5
    squares = torch.linalg.svdvals(kernel).square().reshape(-1, 3).sum(0)
    assert (squares.cumsum(0) / squares.sum()).tolist() == pytest.approx([0.711, 0.964, 1.0], abs=5e-3)
    assert again(kernel, 0.98, matrices="kernels", rule="code").abs().sum() == 0
    lost = (again(kernel, 0.95, matrices="kernels", rule="code") - kernel).square().sum() / kernel.square().sum()
    assert lost.item() == pytest.approx(0.036, abs=5e-3)  # cut off, though 2 (3 + 3) numbers are more than 9
    assert torch.equal(again(kernel, 0.98, matrices="kernels"), kernel)


def test_vectors_and_whole_numbers_stay_as_they_are():
    weights = Weights.of(nn.BatchNorm1d(7))
    sent = LowRank.of(weights, 0.01)
    assert not sent.left and sent.whole.keys() == weights.tensors.keys()


def test_names_come_back_in_the_order_of_the_module():
    module = nn.Sequential(nn.Linear(20, 30), nn.BatchNorm1d(30), nn.Linear(30, 20))
    like = Weights.of(module)
    found = LowRank.of(like, 0.3).weights(like)
    assert list(found.tensors) == list(like.tensors)
    found.load_into(module)


@pytest.mark.parametrize("rule", ["enough", "code"])
def test_it_travels_unchanged_even_where_nothing_is_left_of_a_matrix(rule: Any):
    sent = LowRank.of(Weights({"a": torch.eye(6), "b": randn(30, 40), "c.d": torch.ones(3)}), 0.6, rule=rule)
    arrived = unpack(LowRank, from_bytes(to_bytes(pack(sent)))[0])
    assert arrived is not None and arrived.flat().keys() == sent.flat().keys()
    for name, tensor in sent.flat().items():
        assert torch.equal(arrived.flat()[name], tensor)


def test_matrices_that_do_not_make_the_weights_expected_are_refused():
    like = Weights({"w": torch.zeros(4, 6), "b": torch.zeros(4)})
    whole, left, right = {"b": torch.zeros(4)}, torch.zeros(4, 1), torch.zeros(1, 6)
    LowRank(whole, {"w": left}, {"w": right}).weights(like)
    for sent, why in [
        (LowRank(whole, {"w": left}, {}), "make no weights"),
        (LowRank(whole, {}, {"w": right}), "other half"),
        (LowRank({**whole, "w": torch.zeros(4, 6)}, {"w": left}, {"w": right}), "make no weights"),
        (LowRank(whole, {"w": left}, {"w": torch.zeros(1, 5)}), "make no weights"),
        (LowRank(whole, {"w": left}, {"w": torch.zeros(2, 6)}), "make no weights"),
        (LowRank(whole, {"w": left.T}, {"w": right}), "make no weights"),
        (LowRank(whole, {"w": torch.zeros(2, 4, 1)}, {"w": torch.zeros(2, 1, 6)}), "make no weights"),
        (LowRank(whole, {"w": left.double()}, {"w": right.double()}), "make no weights"),
        (LowRank(whole, {"w": left.squeeze()}, {"w": right.squeeze()}), "make no weights"),
        (LowRank(whole, {"w": left, "v": left}, {"w": right, "v": right}), "make no weights"),
        (LowRank({}, {"w": left, "b": left}, {"w": right, "b": right}), "make no weights"),
        (LowRank(whole, {}, {}), "'w': nothing arrived"),
        (LowRank({}, {"w": left}, {"w": right}), "'b': nothing arrived"),
        (LowRank({"b": torch.zeros(5)}, {"w": left}, {"w": right}), r"'b': \(5,\)"),
        (LowRank({"b": torch.zeros(4).double()}, {"w": left}, {"w": right}), "float64 arrived, not"),
        (LowRank({**whole, "more": left}, {"w": left}, {"w": right}), "'more'"),
    ]:
        with pytest.raises(PayloadError, match=why):
            sent.weights(like)


def test_what_is_not_finite_is_refused():
    sent = LowRank({}, {"w": torch.full((4, 1), torch.inf)}, {"w": torch.zeros(1, 6)})
    with pytest.raises(PayloadError, match="not finite"):
        sent.check(2, 3)
