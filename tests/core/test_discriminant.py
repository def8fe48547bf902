"""Discriminants from class means: against hand-written ones, scikit-learn's, and the expectation of the estimator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protea import Prototypes
from protea.core.discriminant import SCALES, Moments, calibrate, discriminant, each_without, likelihoods, oas

CLASSES, DIM = 4, 6


def normals(samples: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Samples of normal classes with one covariance: features, labels, and the covariance."""
    g = torch.Generator().manual_seed(seed)
    mix = torch.randn(DIM, DIM, generator=g, dtype=torch.float64)
    centres = 2 * torch.randn(CLASSES, DIM, generator=g, dtype=torch.float64)
    y = torch.arange(samples) % CLASSES
    return centres[y] + torch.randn(samples, DIM, generator=g, dtype=torch.float64) @ mix.T, y, mix @ mix.T


def with_one(z: Tensor) -> Tensor:
    return torch.nn.functional.pad(z, (0, 1), value=1.0)


def test_rows_of_one_sample_give_the_pooled_lda_of_a_textbook():
    z, y, _ = normals(200)
    means = torch.stack([z[y == c].mean(0) for c in range(CLASSES)])
    pooled = (z - means[y]).T @ (z - means[y]) / (len(z) - CLASSES)
    moments = Moments.of_samples(z, y, CLASSES)
    torch.testing.assert_close(moments.covariance(), oas(pooled, len(z) - CLASSES), rtol=1e-10, atol=1e-10)

    inverse = torch.linalg.inv(oas(pooled, len(z) - CLASSES))
    away = z.unsqueeze(1) - means  # log-likelihoods up to what all classes share
    log = -0.5 * torch.einsum("ncd,de,nce->nc", away, inverse, away)
    found = with_one(z) @ discriminant(moments).vectors.T
    torch.testing.assert_close(found - found[:, :1], log - log[:, :1], rtol=1e-6, atol=1e-6)


def test_it_answers_as_scikit_learn_s_does_with_the_same_shrinkage():
    lda = pytest.importorskip("sklearn.discriminant_analysis").LinearDiscriminantAnalysis
    from sklearn.covariance import EmpiricalCovariance

    class Given(EmpiricalCovariance):
        """The covariance that our moments have, whatever scikit-learn would estimate."""

        def fit(self, x: object, y: object = None) -> Given:
            self.covariance_ = ours
            return self

    z, y, _ = normals(60, seed=3)
    moments = Moments.of_samples(z, y, CLASSES)
    ours = moments.covariance().numpy()
    theirs = lda(solver="lsqr", covariance_estimator=Given(), priors=[1 / CLASSES] * CLASSES).fit(z.numpy(), y.numpy())
    # scikit-learn averages the covariances of classes, all of which are ours here
    log = torch.from_numpy(theirs.decision_function(z.numpy()))
    found = with_one(z) @ discriminant(moments).vectors.T
    torch.testing.assert_close(found - found[:, :1], log - log[:, :1], rtol=1e-6, atol=1e-6)


def test_the_shrinkage_is_scikit_learn_s():
    covariance = pytest.importorskip("sklearn.covariance")
    x = torch.randn(40, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = x * torch.arange(1, DIM + 1)  # clearly no multiple of the identity
    there, share = covariance.oas(x.numpy(), assume_centered=True)
    # scikit-learn leaves out the 2/p of the paper's Eq. 23; with these numbers both are close
    assert oas(x.T @ x / 40, 40).numpy() == pytest.approx(there, rel=0.1)
    plain = (x.T @ x / 40).numpy()
    found = 1 - (oas(x.T @ x / 40, 40).numpy()[0, 1] / plain[0, 1])
    assert found == pytest.approx(share, rel=0.2) and 0 < found < 1


@pytest.mark.parametrize("size", [1, 5, 20])
def test_the_scatter_of_means_estimates_the_covariance_of_samples(size: int):
    """Whatever the number of samples behind a mean: 4,000 means of each class."""
    z, y, truth = normals(CLASSES * 4000 * size)
    g, labels = (t.view(4000, size, CLASSES, *t.shape[1:]).transpose(1, 2).flatten(0, 1) for t in (z, y))
    assert (labels == labels[:, :1]).all()
    moments = Moments.of(g.mean(1), labels[:, 0], torch.full((len(g),), float(size)), CLASSES)
    error = torch.linalg.matrix_norm(moments.covariance() - truth) / torch.linalg.matrix_norm(truth)
    assert error < 0.05


def test_without_scatter_the_nearest_mean_answers():
    """One mean of each class: the covariance is the identity, and scores are those of Euclidean distances."""
    means = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    made = discriminant(Moments.of(means, torch.tensor([0, 2]), torch.tensor([9.0, 5.0]), classes=3))
    assert made.present.tolist() == [True, False, True]
    z = torch.randn(7, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores, near = with_one(z) @ made.vectors[[0, 2]].T, -0.5 * torch.cdist(z, means).square()
    torch.testing.assert_close(scores[:, 0] - scores[:, 1], near[:, 0] - near[:, 1])


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1.0, 5.0, 1e6])), max_size=8),
    st.sampled_from([0.0, 1.0, 1e4]),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_few_rows_equal_rows_and_large_numbers_leave_it_finite(
    dim: int, rows: list[tuple[int, float]], size: float, seed: int
):
    means = size * torch.randn(len(rows), dim, generator=torch.Generator().manual_seed(seed))
    labels = torch.tensor([label for label, _ in rows], dtype=torch.int64)
    made = discriminant(Moments.of(means, labels, torch.tensor([n for _, n in rows]), classes=3))
    assert torch.isfinite(made.vectors).all() and made.vectors.shape == (3, dim + 1)
    assert made.present.tolist() == [c in labels for c in range(3)]


@given(st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_leaving_one_out_by_halves_is_the_sum_of_the_others(owners: int, seed: int):
    g = torch.Generator().manual_seed(seed)
    means, labels, counts = torch.randn(30, 3, generator=g), torch.arange(30) % 2, torch.arange(30.0) + 1
    owner = torch.randint(owners, (30,), generator=g)

    def moments(of: Sequence[int]) -> Moments:
        rows = torch.isin(owner, torch.tensor(of))
        return Moments.of(means[rows], labels[rows], counts[rows], 2)

    found = dict(each_without(range(owners), moments, moments([-1])))
    assert list(found) == list(range(owners))
    for left_out, others in found.items():
        plain = moments([each for each in range(-1, owners) if each != left_out])
        assert others.rows == plain.rows
        for name in ("sums", "counts", "second"):
            torch.testing.assert_close(getattr(others, name), getattr(plain, name))


def test_a_class_without_a_row_is_as_likely_as_the_mixture_of_the_others():
    rows = Prototypes(torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 3.0]]), torch.tensor([1.0, 0.0, 1.0]))
    found = likelihoods(torch.tensor([[5.0, 1.0]]), rows, scale=1.0).exp()[0]
    assert found[1].item() == pytest.approx((found[0] + found[2]).item() / 2)
    assert likelihoods(torch.tensor([[5.0, 1.0]]), rows, scale=0.0).tolist() == [[0.0, 0.0, 0.0]]


def test_a_good_discriminant_is_trusted_a_misleading_one_is_not():
    z, y, _ = normals(400)
    made = discriminant(Moments.of_samples(z[:200], y[:200], CLASSES))
    nothing = z.new_zeros(200, CLASSES)
    assert 0.5 < calibrate([(with_one(z[200:]), y[200:], made, nothing)]) < 2
    turned = Prototypes(made.vectors.roll(1, 0), made.counts)  # every class is taken for its neighbour
    assert calibrate([(with_one(z[200:]), y[200:], turned, nothing)]) == 0.0
    assert SCALES[0] == 0.0
