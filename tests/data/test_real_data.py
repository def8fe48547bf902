"""The real files, where this machine has them."""

from __future__ import annotations

import hashlib

import torch
from wanted import dataset

from protea.data import Dirichlet, Split, federate, files
from protea.data.sources.cifar import CIFAR10, CIFAR100
from protea.data.sources.idx import FILES, FashionMNIST


def test_fashion_mnist_is_the_published_one() -> None:
    dataset("fashion-mnist")
    data = FashionMNIST().load()
    assert data.x.shape == (70_000, 1, 28, 28)
    assert data.tests == 10_000
    assert data.y.bincount().tolist() == [7000] * 10
    folder = files.SourceFiles("fashion-mnist", ["fashion-mnist"], FILES, []).find()
    digests = [hashlib.md5(files.read_content(files.find_file(folder, name) or folder)).hexdigest() for name in FILES]
    assert digests == [
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ]


def test_cifar10_split_as_in_fedtgp() -> None:
    dataset("cifar-10-batches-bin")
    data = CIFAR10().load()
    assert data.y.bincount().tolist() == [6000] * 10
    assert data.names[:3] == ("airplane", "automobile", "bird")
    split = Split(test=0.25, validation=0, stratify=False)
    shares = federate(data, 20, Dirichlet(0.1, "pfllib"), seed=1, pool="all", split=split)
    assert shares.class_counts()[19].tolist() == [1, 1, 1, 1, 1, 2651, 1, 1, 1, 1]
    assert 0.72 < shares.majority() < 0.76


def test_cifar100_whatever_its_size() -> None:
    dataset("cifar-100-binary")
    data = CIFAR100().load()
    assert data.classes == 100
    assert data.shape == (3, 32, 32)
    assert len(torch.unique(data.y)) == 100
    assert data.names[0] == "apple"


def test_fashion_mnist_in_the_form_of_cifar_looks_the_same() -> None:
    dataset("fashion-mnist")
    small, large = FashionMNIST().load(), FashionMNIST(size=32, channels=3).load()
    assert large.x.shape == (70_000, 3, 32, 32) and large.x.dtype == small.x.dtype
    assert (large.x[:100, 0] == large.x[:100, 2]).all() and (large.y == small.y).all()
    means = [part.x[:500].float().mean((1, 2, 3)) for part in (small, large)]
    assert (means[0] - means[1]).abs().max() < 2  # of 255
