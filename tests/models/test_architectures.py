"""Sizes as in the papers and reference codes; every architecture on every size of image."""

from __future__ import annotations

import pytest
import torch
from night import by_night
from own_models import build
from torch import nn

from protea.config.families import Member
from protea.config.registry import BUILT_IN
from protea.core.errors import ConfigError
from protea.core.rng import Streams
from protea.core.split_model import SplitModel
from protea.models.architectures import count_parameters as size

LARGE = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
OF_TORCHVISION = ("googlenet", "mobilenet_v2", "shufflenet_v2_x1_0", "efficientnet_b0")
OF_TEXTS = ("bag", "textcnn", "bilstm")
SMALL = [name for name in BUILT_IN["architectures"] if name not in (*LARGE, *OF_TORCHVISION, *OF_TEXTS)]


def parameters(name: str, shape: tuple[int, ...], classes: int, dim: int = 512, **keywords: object) -> dict[str, int]:
    with torch.device("meta"):
        return size(build(Member(name, keywords), shape=shape, classes=classes, dim=dim))


def width(name: str, shape: tuple[int, ...] = (3, 32, 32)) -> int:
    with torch.device("meta"):
        model = build(Member(name), shape=shape, classes=10, dim=512, adapter="linear")
        return model.adapter.in_features


def test_cnn4_has_the_parameters_that_fedtgp_counts():
    parts = parameters("cnn4", (3, 32, 32), 100)
    assert parts == {"body": 924_708 - 51_300, "adapter": 0, "head": 51_300}


def test_flatten_of_cnn4_follows_the_image():
    def flat(shape: tuple[int, ...]) -> int:
        body = build(Member("cnn4"), shape=shape, classes=2, dim=4).body
        return next(layer.in_features for layer in body if isinstance(layer, nn.Linear))

    assert [flat((1, 28, 28)), flat((3, 32, 32)), flat((3, 64, 64))] == [1024, 1600, 10816]


@pytest.mark.parametrize(
    ("name", "convs", "linears"),
    [
        ("htcnn1", 1, [512]),
        ("htcnn2", 2, [512]),
        ("htcnn3", 1, [512, 512]),
        ("htcnn4", 2, [512, 512]),
        ("htcnn5", 1, [1024, 512]),
        ("htcnn6", 2, [1024, 512]),
        ("htcnn7", 1, [1024, 512, 512]),
        ("htcnn8", 2, [1024, 512, 512]),
    ],
)
def test_htcnn8_differ_in_convolutions_and_hidden_layers(name, convs, linears):
    body = build(Member(name), shape=(1, 28, 28), classes=10, dim=512).body
    found = [layer for layer in body if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in found] == [32, 64][:convs]
    assert all(layer.kernel_size == (5, 5) and layer.padding == (0, 0) for layer in found)
    flat = {1: 32 * 12 * 12, 2: 64 * 4 * 4}[convs]
    shapes = [(layer.in_features, layer.out_features) for layer in body if isinstance(layer, nn.Linear)]
    assert shapes == list(zip([flat, *linears], linears, strict=False))
    assert isinstance(body[-1], nn.ReLU)


def test_cnn_and_mlp_are_those_of_the_first_federated_learning_paper():
    """McMahan et al. 2017 count 1,663,370 and 199,210 parameters on MNIST."""
    assert sum(parameters("cnn", (1, 28, 28), 10).values()) == 1_663_370
    assert sum(parameters("mlp", (1, 28, 28), 10, dim=200).values()) == 199_210


def test_widths_of_the_features():
    small = {name: width(name) for name in ("resnet4", "resnet6", "resnet8", "resnet10")}
    assert small == {"resnet4": 64, "resnet6": 128, "resnet8": 256, "resnet10": 512}
    assert [width("resnet18"), width("resnet34")] == [512, 512]
    assert width("resnet50") == 2048
    assert [width("cnn4"), width("cnn"), width("mlp"), width("mlp5", (2,))] == [512, 512, 200, 2]


def test_mlp5_has_five_layers_with_its_head_and_features_of_any_sign():
    with Streams(0).default("test"):  # by chance all may have one sign
        model = build(Member("mlp5"), shape=(2,), classes=6, dim=2)
        z = model.features(torch.randn(100, 2))
    assert len([layer for layer in model.modules() if isinstance(layer, nn.Linear)]) == 5
    assert z.shape == (100, 2)
    assert (z < 0).any()


def learns(model: SplitModel, shape: tuple[int, ...]) -> None:
    """One training step: every parameter gets a gradient."""
    x, y = torch.randn(2, *shape), torch.tensor([0, 1])
    nn.functional.cross_entropy(model(x), y).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), *by_night(((3, 64, 64),))], ids=str)
@pytest.mark.parametrize("name", [name for name in SMALL if name != "mlp5"])
def test_takes_images(name, shape):
    torch.manual_seed(0)
    learns(build(Member(name), shape=shape, classes=3, dim=32), shape)


@pytest.mark.parametrize("shape", [(1, 28, 28), *by_night(((3, 32, 32),), ((3, 64, 64),))], ids=str)
@pytest.mark.parametrize("name", LARGE)
def test_large_networks_take_images(name, shape):
    with torch.device("meta"):  # shapes only: numbers would take seconds
        build(Member(name), shape=shape, classes=3, dim=32)  # looks at what the body gives


@pytest.mark.parametrize("name", ["resnet18", "resnet50", *by_night("resnet34")])
def test_large_networks_learn(name):
    torch.manual_seed(0)
    learns(build(Member(name), shape=(3, 32, 32), classes=3, dim=32), (3, 32, 32))


@pytest.mark.parametrize("name", ["cnn", "htcnn1", "htcnn7", "mlp", "resnet4", "resnet10"])
def test_takes_digits(name):
    torch.manual_seed(0)
    learns(build(Member(name), shape=(1, 8, 8), classes=3, dim=32), (1, 8, 8))


@pytest.mark.parametrize(("name", "least"), [("cnn4", "16x16"), ("htcnn8", "16x16"), ("htcnn1", "6x6")])
def test_an_image_that_is_too_small_is_refused_with_the_size_needed(name, least):
    side = 8 if least == "16x16" else 5
    with pytest.raises(ConfigError, match=f"'{name}': images of {side}x{side} .* needs {least}.  Use cnn"):
        build(Member(name), shape=(1, side, side), classes=3, dim=8)
    side = int(least.split("x")[0])
    build(Member(name), shape=(1, side, side), classes=3, dim=8)


@pytest.mark.parametrize("name", ["cnn4", "resnet18"])
def test_an_image_network_refuses_vectors(name):
    with pytest.raises(ConfigError, match=rf"'{name}': it takes images .* shape \(64,\)"):
        build(Member(name), shape=(64,), classes=3, dim=8)


def test_settings_of_an_architecture_can_be_changed():
    assert parameters("cnn4", (1, 28, 28), 10, width=100)["body"] == 832 + 51_264 + 1024 * 100 + 100
    assert parameters("mlp", (5,), 2, dim=7, hidden=[7])["body"] == 5 * 7 + 7


def test_an_unknown_setting_names_those_there_are():
    with pytest.raises(ConfigError, match=r"'mlp' cannot be called with shape, hiden.*\n.*settings are: hidden\."):
        build(Member("mlp", {"hiden": [3]}), shape=(5,), classes=2, dim=4)


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="convs is 3; it may be 1 or 2"):
        build(Member("cnn4", {"convs": 3}), shape=(1, 28, 28), classes=2, dim=4)
    with pytest.raises(ConfigError, match=r"blocks is .* one to four entries"):
        build(Member("resnet18", {"blocks": []}), shape=(1, 28, 28), classes=2, dim=4)
