"""The map that all clients share: the same everywhere, with a constant at the end."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from protea.core.common_map import CommonMap, common_map, uniform


def test_its_numbers_are_those_of_the_raw_stream_and_of_no_generator_of_torch():
    torch.manual_seed(1)
    one = CommonMap((1, 8, 8), 16, seed=7)
    torch.manual_seed(2)
    two = CommonMap((1, 8, 8), 16, seed=7)
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), two.buffers(), strict=True))
    drawn = uniform(np.random.PCG64(7), 1000).numpy()
    assert hashlib.sha256(drawn.tobytes()).hexdigest().startswith("dd2751c07a5b4392")  # on any machine, in any version
    assert not torch.equal(CommonMap((1, 8, 8), 16, seed=8).projection, one.projection)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28), (2, 3, 3), (1, 2, 2), (5,), (4, 7)])
def test_any_shape_becomes_dim_numbers_of_which_the_last_is_one(shape: tuple[int, ...]):
    x = torch.randn(6, *shape, generator=torch.Generator().manual_seed(0))
    z = common_map(shape, 12, 7, torch.device("cpu"))(x)
    assert z.shape == (6, 12) and torch.isfinite(z).all() and (z[:, -1] == 1).all()
    assert z[:, :-1].std(0).min() > 0  # all of them say something


def test_long_vectors_are_projected_linearly_and_short_ones_are_not():
    for inputs, linear in ((20, True), (3, False)):
        phi, (a, b) = CommonMap((inputs,), 8, seed=7), torch.randn(2, 1, inputs, generator=torch.Generator())
        middle = (phi(a) + phi(b)) / 2
        assert torch.allclose(phi((a + b) / 2), middle, atol=1e-5) == linear


def test_columns_of_any_scale_leave_it_finite_and_whole_numbers_are_taken():
    x = torch.tensor([[1e30, -1e-30, 3.0], [0.0, 2.0, -1e30]])
    assert torch.isfinite(CommonMap((3,), 8, seed=7)(x)).all()
    assert CommonMap((3,), 8, seed=7)(torch.ones(2, 3, dtype=torch.int64)).dtype == torch.float32


def test_it_never_trains_and_is_made_once():
    assert not list(CommonMap((5,), 8, seed=7).parameters())
    one, two = (common_map((5,), 8, 7, torch.device("cpu")) for _ in range(2))
    assert one is two
    with pytest.raises(ValueError, match="at least 2"):
        CommonMap((5,), 1, seed=7)
