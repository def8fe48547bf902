import pytest
import torch
from torch import nn

from protea import Prototypes
from protea.core.errors import CheckpointError
from protea.core.memory import Memory


def test_everything_it_holds_comes_back():
    memory = Memory(margin=2.5, name="x", tensor=torch.arange(3), net=nn.Linear(2, 1))
    memory["prototypes"] = Prototypes(torch.tensor([[1.0], [0.0]]), torch.tensor([4.0, 0.0]))
    again = Memory(net=nn.Linear(2, 1), stale=torch.ones(1))
    again.restore(*memory.flat())
    assert again.keys() == memory.keys()
    assert again["margin"] == 2.5 and again["name"] == "x" and again["tensor"].tolist() == [0, 1, 2]
    assert torch.equal(again["net"].weight, memory["net"].weight)
    assert torch.equal(again["prototypes"].vectors, memory["prototypes"].vectors)


def test_what_could_not_be_saved_is_refused_when_it_is_stored():
    with pytest.raises(TypeError, match=r"memory\['notes'\] cannot hold a list"):
        Memory()["notes"] = [1, 2]


def test_a_name_with_a_slash_is_refused():
    with pytest.raises(KeyError, match="no slash"):
        Memory()["prototypes/old"] = torch.ones(1)


def test_what_is_unknown_is_not_restored():
    with pytest.raises(CheckpointError, match="kind 'Pickled', which is unknown"):
        Memory().restore({}, '{"x": "Pickled"}')
    with pytest.raises(CheckpointError, match="did not make"):
        Memory().restore({"net/weight": torch.ones(1)}, '{"net": "module"}')


def test_what_is_saved_is_a_copy():
    memory = Memory(t=torch.ones(2))
    tensors, _ = memory.flat()
    memory["t"].zero_()
    assert tensors["t/"].tolist() == [1, 1]
