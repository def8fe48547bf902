import pytest
import torch
from torch import nn

from protea import Weights
from protea.core.errors import PayloadError
from protea.core.message import nbytes
from protea.core.payload import pack


def test_means_are_weighted_by_samples():
    parts = [Weights({"w": torch.tensor([0.0, 4.0])}), Weights({"w": torch.tensor([4.0, 8.0])})]
    assert Weights.mean(parts).tensors["w"].tolist() == [2, 6]
    assert Weights.mean(parts, [3, 1]).tensors["w"].tolist() == [1, 5]


def test_the_mean_of_one_is_itself_to_the_bit():
    module = nn.Linear(7, 5)
    mean = Weights.mean([Weights.of(module)], [13])
    for name, tensor in module.state_dict().items():
        assert torch.equal(mean.tensors[name], tensor)


def test_a_head_of_100_classes_in_512_dimensions_is_51300_numbers():
    assert nbytes(pack(Weights.of(nn.Linear(512, 100)))) == 4 * 51_300


def test_step_counters_of_batchnorm_are_not_averaged():
    norms = [nn.BatchNorm1d(2) for _ in range(2)]
    norms[1].num_batches_tracked += 5
    mean = Weights.mean([Weights.of(norm) for norm in norms])
    assert mean.tensors["num_batches_tracked"].item() == 5
    mean.load_into(norms[0])
    assert norms[0].num_batches_tracked.item() == 5


def test_weights_of_another_shape_are_refused():
    with pytest.raises(PayloadError, match=r"'bias': \(3,\) of torch.float32 arrived, not \(4,\)"):
        Weights.of(nn.Linear(2, 3)).check_like(Weights.of(nn.Linear(2, 4)))
