"""torchvision and timm, where they are installed."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from night import by_night
from own_models import build
from torch import nn
from wanted import extra

from protea.config.families import Member, members
from protea.core.errors import ConfigError, PluginError
from protea.core.shell import install_hint
from protea.models.architectures import count_parameters as size
from protea.models.architectures import make_architecture
from protea.models.resnet import Bottleneck
from protea.models.vision import import_quietly, take_channels


def package(name: str):
    extra("vision")
    return import_quietly(name)


@pytest.fixture
def torchvision():
    return package("torchvision")


@pytest.fixture
def timm():
    return package("timm")


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_our_resnets_are_torchvisions(torchvision, depth):
    with torch.device("meta"):
        theirs = torchvision.models.get_model(f"resnet{depth}", num_classes=10)
        ours = make_architecture(Member(f"resnet{depth}"), (3, 32, 32), 10)
    theirs.fc = nn.Identity()
    assert {k: v.shape for k, v in theirs.state_dict().items()} == {k: v.shape for k, v in ours.state_dict().items()}
    assert count(ours) == count(theirs)


@pytest.mark.parametrize(
    ("depth", "kind", "blocks"),
    [
        *((18, "BasicBlock", (1, 2, 1, 1)), (50, "Bottleneck", (1, 2, 1, 1))),  # with each kind of shortcut
        *by_night((18, "BasicBlock", (2, 2, 2, 2)), (50, "Bottleneck", (3, 4, 6, 3))),
    ],
)
def test_our_resnets_compute_what_torchvisions_do(torchvision, depth, kind, blocks):
    torch.manual_seed(0)
    theirs = torchvision.models.ResNet(getattr(torchvision.models.resnet, kind), blocks)
    theirs.fc = nn.Identity()
    ours = make_architecture(Member(f"resnet{depth}", {"blocks": blocks}), (3, 64, 64), 10)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(x), theirs(x))  # in training mode: BatchNorm of the batch


NAMES = {"googlenet": 1024, "mobilenet_v2": 1280, "shufflenet_v2_x1_0": 1024, "efficientnet_b0": 1280}


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), *by_night(((3, 64, 64),))], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_takes_images(torchvision, name, shape):
    torch.manual_seed(0)
    model = build(Member(name), shape=shape, classes=3, dim=512, adapter="pool")
    model(torch.randn(4, *shape)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(("name", "width"), NAMES.items())
def test_bodies_are_torchvisions_without_the_last_layer(torchvision, name, width):
    keywords = {"aux_logits": False, "init_weights": True} if name == "googlenet" else {}
    with torch.device("meta"):
        theirs = torchvision.models.get_model(name, num_classes=10, **keywords)
        ours = build(Member(name), shape=(3, 32, 32), classes=10, dim=512, adapter="linear")
    assert ours.adapter.in_features == width
    assert size(ours)["body"] == count(theirs) - 10 * width - 10


@pytest.mark.parametrize("name", ["googlenet", "mobilenet_v2", "efficientnet_b0"])
def test_features_are_dropped_out_in_training_only(torchvision, name):
    torch.manual_seed(0)
    body = build(Member(name), shape=(3, 32, 32), classes=3, dim=512).body
    dropped = [layer for layer in body.modules() if isinstance(layer, nn.Dropout)]
    assert [layer.p for layer in dropped] == [0.2]
    body.eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(body(x), body(x))
    dropped[0].train()
    share = (body(x) == 0).float().mean() - (body.eval()(x) == 0).float().mean()
    assert 0.05 < share < 0.3


def test_an_image_that_is_too_small_is_refused(torchvision):
    with pytest.raises(ConfigError, match=r"'googlenet' does not take a batch of 2 samples of shape \(1, 8, 8\)"):
        build(Member("googlenet"), shape=(1, 8, 8), classes=3, dim=8)
    with pytest.raises(ConfigError, match=r"'googlenet': it takes images"):
        build(Member("googlenet"), shape=(64,), classes=3, dim=8)


def test_whole_torchvision_classifiers_are_split(torchvision):
    with torch.device("meta"):
        model = build(Member("torchvision:mnasnet0_5"), shape=(1, 28, 28), classes=3, dim=8)
        assert isinstance(model.body.classifier[1], nn.Identity)
        vit = Member("torchvision:vit_b_32", {"num_layers": 1, "hidden_dim": 24, "num_heads": 2})
        with pytest.raises(ConfigError, match=r"'torchvision:vit_b_32': it cannot be made with .*num_layers"):
            build(vit, shape=(3, 32, 32), classes=3, dim=8)
        build(Member("torchvision:vit_b_32"), shape=(3, 32, 32), classes=3, dim=8)
        with pytest.raises(ConfigError, match="'torchvision:squeezenet1_1' gives 3 scores, but not straight from"):
            build(Member("torchvision:squeezenet1_1"), shape=(3, 32, 32), classes=3, dim=8)


def test_unknown_names_are_answered_with_the_nearest_one(torchvision, timm):
    with pytest.raises(PluginError, match=r"torchvision has no classifier 'resnt18'.  Did you mean resnet18\?"):
        build(Member("torchvision:resnt18"), shape=(3, 32, 32), classes=3, dim=8)
    with pytest.raises(PluginError, match=r"timm has no model 'resnet18x'.  Did you mean resnet18\?"):
        build(Member("timm:resnet18x"), shape=(3, 32, 32), classes=3, dim=8)


@pytest.mark.parametrize(("name", "width"), [("resnet10t", 512), ("vit_tiny_patch16_224", 192)])
def test_timm_bodies(timm, name, width):
    model = build(Member(f"timm:{name}"), shape=(1, 32, 32), classes=3, dim=8)
    x = torch.randn(2, 1, 32, 32)
    assert model.body(x).shape == (2, width)
    model(x).sum().backward()


def test_first_convolution_takes_other_channels():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 2, 3)), nn.Conv2d(2, 5, 1))
    first, grey = model[0][0], torch.randn(1, 1, 4, 4)
    expected = model(grey.expand(1, 3, 4, 4))
    take_channels(model, 1)
    torch.testing.assert_close(model(grey), expected)  # one grey channel stands for three equal ones
    assert first.in_channels == 1
    assert model[1].in_channels == 2

    weight = (first := nn.Conv2d(2, 1, 1)).weight.detach().clone()
    take_channels(first, 4)
    torch.testing.assert_close(first.weight, weight[:, [0, 1, 0, 1]] / 2)


def test_a_model_without_convolutions_is_left_alone():
    take_channels(nn.Linear(3, 2), 1)


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(
        PluginError,
        match=re.escape(f"'mobilenet_v2': torchvision is not installed.  Type: {install_hint('vision')}"),
    ):
        build(Member("mobilenet_v2"), shape=(3, 32, 32), classes=3, dim=8)


def test_everything_else_works_without_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "timm", None)
    for member in (*members("tiny5"), *members("htfe3")):
        with torch.device("meta"):
            build(member, shape=(1, 8, 8), classes=3, dim=8)


def test_bottleneck_has_its_stride_at_the_middle_convolution():
    block = Bottleneck(8, 4, 2, None)
    assert [block.conv1.stride, block.conv2.stride, block.conv3.stride] == [(1, 1), (2, 2), (1, 1)]
