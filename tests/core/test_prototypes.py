import pytest
import torch

from protea import Prototypes
from protea.core.errors import PayloadError
from protea.core.message import nbytes
from protea.core.payload import pack, unpack
from protea.core.prototypes import Collector


def prototypes(*rows: tuple[list[float], float]) -> Prototypes:
    return Prototypes(torch.tensor([vector for vector, _ in rows]), torch.tensor([count for _, count in rows]))


def test_a_prototype_is_the_mean_feature_of_its_class():
    features = torch.tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]])
    found = Prototypes.of(features, torch.tensor([0, 0, 2]), classes=3)
    assert found.vectors.tolist() == [[2.0, 1.0], [0.0, 0.0], [5.0, 5.0]]
    assert found.counts.tolist() == [2, 0, 1]
    assert found.present.tolist() == [True, False, True]


def test_the_three_averages_of_one_class():
    """P_1 = (1, 0) of one sample, P_2 = (0, 2) of three: weights 1/2 1/2; 1/4 3/4; and 1/8 3/8 as printed."""
    parts = [prototypes(([1.0, 0.0], 1.0)), prototypes(([0.0, 2.0], 3.0))]
    assert Prototypes.mean(parts).vectors.tolist() == [[0.5, 1.0]]
    assert Prototypes.mean(parts, "count").vectors.tolist() == [[0.25, 1.5]]
    assert Prototypes.mean(parts, "literal").vectors.tolist() == [[0.125, 0.75]]


def test_a_client_counts_only_for_the_classes_it_has():
    cat_only = prototypes(([2.0], 1.0), ([0.0], 0.0), ([0.0], 0.0))
    both = prototypes(([8.0], 2.0), ([5.0], 4.0), ([0.0], 0.0))
    mean = Prototypes.mean([cat_only, both])
    assert mean.vectors.tolist() == [[5.0], [5.0], [0.0]]
    assert mean.present.tolist() == [True, True, False]
    assert mean.counts.tolist() == [3, 4, 0]


def test_the_nearest_prototype_scores_highest_and_an_absent_one_never():
    known = prototypes(([0.0, 0.0], 1.0), ([3.0, 4.0], 1.0), ([1.0, 1.0], 0.0))
    scores = known.scores(torch.tensor([[0.0, 0.0], [3.0, 3.0]]))
    assert scores.argmax(1).tolist() == [0, 1]
    assert scores[:, 2].tolist() == [-torch.inf, -torch.inf]
    assert scores[0, 1].item() == pytest.approx(-5.0)
    cosine = known.scores(torch.tensor([[30.0, 40.0]]), "cosine")
    assert cosine[0, 1].item() == pytest.approx(1.0)


def test_classes_absent_now_are_filled_from_before():
    now, before = prototypes(([1.0], 1.0), ([0.0], 0.0)), prototypes(([7.0], 9.0), ([8.0], 9.0))
    filled = now.filled(before)
    assert filled.vectors.tolist() == [[1.0], [8.0]] and filled.counts.tolist() == [1, 9]
    assert now.filled(None) is now


def test_gathered_batch_by_batch_they_are_the_same_as_at_once():
    torch.manual_seed(0)
    features, labels = torch.randn(50, 4), torch.randint(5, (50,))
    gathered = Collector(5)
    for rows in torch.arange(50).split(7):
        gathered.add(features[rows].requires_grad_(), labels[rows])
    found = gathered.prototypes()
    assert not found.vectors.requires_grad
    torch.testing.assert_close(found.vectors, Prototypes.of(features, labels, 5).vectors)
    assert found.counts.tolist() == torch.bincount(labels, minlength=5).tolist()


def test_only_vectors_of_present_classes_travel():
    known = prototypes(([1.0, 2.0], 3.0), ([0.0, 0.0], 0.0))
    flat = pack(known)
    assert flat["vectors"].tolist() == [[1.0, 2.0]] and flat["counts"].tolist() == [3, 0]
    again = unpack(Prototypes, flat)
    assert again is not None and torch.equal(again.vectors, known.vectors)


def test_a_full_set_of_ten_classes_in_512_dimensions_is_20520_bytes():
    assert nbytes(pack(Prototypes(torch.ones(10, 512), torch.ones(10)))) == 20_520


@pytest.mark.parametrize(
    ("vectors", "counts", "complaint"),
    [
        (torch.zeros(2, 4), torch.ones(3), "do not fit"),
        (torch.zeros(3), torch.ones(3), "do not fit"),
        (torch.zeros(3, 5), torch.ones(3), "3 classes in 4 dimensions"),
        (torch.full((3, 4), torch.nan), torch.ones(3), "not finite"),
        (torch.zeros(2, 4), torch.tensor([1.0, 1.0, -1.0]), "negative count"),
    ],
)
def test_what_is_not_as_declared_is_refused(vectors, counts, complaint):
    with pytest.raises(PayloadError, match=complaint):
        Prototypes.from_flat({"vectors": vectors, "counts": counts}).check(classes=3, dim=4)
