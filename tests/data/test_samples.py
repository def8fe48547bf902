from __future__ import annotations

import pytest
import torch
from torch import Tensor

from protea.core.augment import BLACK, random_crop, random_flip
from protea.data import Augment, Dataset, Samples


def images(samples: int = 12) -> Dataset:
    x = torch.randint(256, (samples, 3, 5, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Dataset(x, torch.arange(samples) % 3, ("a", "b", "c"))


def same_bits(one: Tensor, other: Tensor) -> bool:
    return bool((one.view(torch.int32) == other.view(torch.int32)).all())


def test_bytes_become_floats_from_minus_one_to_one() -> None:
    x = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1)
    samples = Samples(Dataset(x, torch.tensor([0, 1, 1]), ("a", "b")), torch.tensor([2, 0, 1]))
    inputs, labels = samples.batch(torch.tensor([0, 1, 2]))
    torch.testing.assert_close(inputs.flatten(), torch.tensor([1.0, -1.0, -0.6]))
    assert labels.tolist() == [1, 0, 1]


def test_kept_floats_and_those_made_batch_by_batch_are_the_same_to_the_bit() -> None:
    index = torch.tensor([7, 1, 11, 4, 0])
    kept, made = Samples(images(), index), Samples(images(), index, budget=0)
    for rows in (torch.tensor([3]), torch.tensor([4, 0, 2]), torch.arange(5)):
        (one, y), (other, y_other) = kept.batch(rows), made.batch(rows)
        assert same_bits(one, other)
        assert one.is_contiguous() and other.is_contiguous()
        assert y.tolist() == y_other.tolist()
    before = kept.batch(torch.arange(5))[0]
    kept.release()
    assert same_bits(before, kept.batch(torch.arange(5))[0])


def test_floats_are_kept_only_within_the_budget() -> None:
    size = 12 * 3 * 5 * 4 * 4
    within, beyond = Samples(images(), budget=size), Samples(images(), budget=size - 1)
    for samples in (within, beyond):
        samples.batch(torch.tensor([0]))
    assert within.floats is not None and beyond.floats is None
    within.release()
    assert within.floats is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_other_inputs_are_left_as_they_are(dtype: torch.dtype) -> None:
    x = torch.arange(8).reshape(4, 2).to(dtype)
    samples = Samples(Dataset(x, torch.zeros(4, dtype=torch.int64), ("a",)))
    assert torch.equal(samples.batch(torch.tensor([1, 3]))[0], x[[1, 3]])


def test_a_batch_may_be_changed_without_harm() -> None:
    samples = Samples(images())
    rows = torch.arange(4)
    samples.batch(rows)[0].zero_()
    assert samples.batch(rows)[0].abs().sum() > 0


@pytest.mark.parametrize("budget", [0, 2**20])
def test_no_rows_at_all(budget: int) -> None:
    none = Samples(images(), torch.empty(0, dtype=torch.int64), budget=budget)
    x, y = none.batch(torch.empty(0, dtype=torch.int64))
    assert (len(none), x.shape, y.shape) == (0, (0, 3, 5, 4), (0,))
    assert none.counts(3).tolist() == [0, 0, 0]


def test_shape_and_counts() -> None:
    samples = Samples(images(), torch.tensor([0, 3, 1]))
    assert samples.shape == (3, 5, 4)
    assert samples.counts(4).tolist() == [2, 1, 0, 0]
    assert samples.y.tolist() == [0, 0, 1]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_crop_is_a_shift_with_black_edges() -> None:
    x = torch.arange(1.0, 10.0).reshape(1, 1, 3, 3).repeat(40, 1, 1, 1)
    cropped = random_crop(x, 1, seeded())
    assert cropped.shape == x.shape
    padded = torch.full((5, 5), BLACK)
    padded[1:4, 1:4] = x[0, 0]
    windows = [padded[i : i + 3, j : j + 3] for i in range(3) for j in range(3)]
    seen = {next(n for n, window in enumerate(windows) if torch.equal(window, image)) for image in cropped[:, 0]}
    assert seen == set(range(9))


def test_a_crop_moves_all_channels_alike() -> None:
    x = torch.rand(6, 1, 4, 4).repeat(1, 3, 1, 1)
    cropped = random_crop(x, 2, seeded())
    assert torch.equal(cropped[:, 0], cropped[:, 1])
    assert torch.equal(cropped[:, 0], cropped[:, 2])


def test_a_flip_mirrors_some_and_leaves_the_others() -> None:
    x = torch.rand(50, 2, 3, 4)
    flipped = random_flip(x, seeded())
    mirrored = [torch.equal(new, old.flip(2)) for new, old in zip(flipped, x, strict=True)]
    kept = [torch.equal(new, old) for new, old in zip(flipped, x, strict=True)]
    assert 10 < sum(mirrored) < 40
    assert sum(mirrored) + sum(kept) == 50


def test_augment_does_what_is_asked_and_the_generator_decides() -> None:
    x = torch.rand(8, 3, 6, 6)
    assert Augment()(x, seeded()) is x
    both = Augment(crop=2, flip=True)
    assert torch.equal(both(x, seeded(1)), both(x, seeded(1)))
    assert not torch.equal(both(x, seeded(1)), both(x, seeded(2)))
