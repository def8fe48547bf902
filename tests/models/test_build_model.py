from __future__ import annotations

import pytest
import torch
from own_models import build, smallest
from torch import nn

from protea.config.families import Member
from protea.core.errors import ConfigError, PluginError
from protea.core.split_model import SplitModel
from protea.models.architectures import count_parameters as size

IMAGE = (1, 6, 6)


def own(name: str, shape: tuple[int, ...] = IMAGE, dim: int = 8, **keywords: object) -> SplitModel:
    return build(Member(f"own_models:{name}", keywords), shape=shape, classes=4, dim=dim)


def test_the_head_is_the_layer_that_gives_the_output_not_the_last_one_registered():
    model = own("backwards")
    assert isinstance(model.body.head, nn.Identity)
    assert isinstance(model.body.first, nn.Linear)
    assert model.body(torch.randn(2, *IMAGE)).shape == (2, 24)
    assert size(model) == {"body": 36 * 24 + 24 + 48, "adapter": 0, "head": 8 * 4 + 4}


def test_settings_reach_the_factory():
    assert own("backwards", width=50).body(torch.randn(2, *IMAGE)).shape == (2, 50)


def test_a_linear_classifier_is_all_head():
    model = own("linear", shape=(36,))
    assert size(model) == {"body": 0, "adapter": 0, "head": 8 * 4 + 4}


def test_a_model_of_another_width_than_the_classes_is_a_body():
    model = own("body")
    assert len(list(model.body)) == 3
    assert model.body(torch.randn(2, *IMAGE)).shape == (2, 30)


def test_a_built_in_body_keeps_its_last_layer_even_where_it_is_as_wide_as_there_are_classes():
    model = build(Member("mlp5", {"width": 4}), shape=(2,), classes=4, dim=4)
    assert model.body(torch.randn(2, 2)).shape == (2, 4)
    assert size(model)["body"] == 2 * 128 + 128 + 2 * (128 * 128 + 128) + 128 * 4 + 4


def test_a_split_model_is_taken_as_it_is():
    model = own("split")
    assert isinstance(model.adapter, nn.Linear)
    assert model.name == "own_models:split"


def test_a_split_model_must_fit():
    with pytest.raises(ConfigError, match=r"(?s)'own_models:split' gives 9 features; expected are 8.*set models.dim=9"):
        own("split", width=9)
    with pytest.raises(ConfigError, match=r"(?s)gives 5 scores; expected are 4.*factory returns\."):
        own("split", scores=5)
    with pytest.raises(ConfigError, match="brings its own head"):
        build(Member("own_models:split", head=(5,)), shape=IMAGE, classes=4, dim=8)


@pytest.mark.parametrize("name", ["softmax", "clipped", "convolution"])
def test_a_classifier_that_does_not_end_in_a_linear_layer_is_refused(name):
    message = rf"(?s)'own_models:{name}' gives 4 scores, but not straight from a linear layer"
    with pytest.raises(ConfigError, match=message + r".*SplitModel\(body, adapter, head\)"):
        own(name)


@pytest.mark.parametrize(("name", "found"), [("maps", r"shape \(2, 5, 4, 4\)"), ("pair", "a tuple")])
def test_an_output_that_is_no_row_of_numbers_is_refused(name, found):
    message = rf"(?s)'own_models:{name}' gives {found} for a batch of 2 samples of shape \(1, 6, 6\)"
    with pytest.raises(ConfigError, match=message + r".*shape \(2, width\).*pool or flatten"):
        own(name)


def test_a_refused_input_is_told_with_its_reason():
    with pytest.raises(
        ConfigError,
        match=r"'own_models:linear' does not take a batch of 2 samples of shape \(1, 6, 6\): mat1",
    ):
        own("linear")


def test_a_factory_must_give_a_module_and_take_what_it_is_given():
    with pytest.raises(ConfigError, match=r"gives a str, not an nn\.Module"):
        own("nothing")
    with pytest.raises(ConfigError, match="cannot be called with shape, classes, depth"):
        own("backwards", depth=3)


def test_names_that_lead_nowhere():
    with pytest.raises(PluginError, match="own_models has no 'absent'"):
        own("absent")
    with pytest.raises(PluginError, match="no module 'no_such_package'"):
        build(Member("no_such_package:model"), shape=IMAGE, classes=4, dim=8)
    with pytest.raises(PluginError, match=r"Did you mean resnet18\?"):
        build(Member("resnet1"), shape=IMAGE, classes=4, dim=8)


def test_nothing_in_a_name_is_run():
    with pytest.raises(PluginError):
        build(Member("__import__('os').getcwd()"), shape=IMAGE, classes=4, dim=8)


def test_building_leaves_batchnorm_and_modes_alone():
    model = build(Member("tiny_resnet"), shape=(1, 8, 8), classes=4, dim=8)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert norms
    for layer in norms:
        assert not layer.running_mean.any()
        assert (layer.running_var == 1).all()
        assert layer.num_batches_tracked == 0
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("adapter", ["pool", "linear", "projector"])
def test_looking_at_a_model_draws_no_random_numbers(adapter):
    """The weights are as if body, adapter and head were made one after the other, with no forward between."""
    torch.manual_seed(3)
    model = build(Member("mlp", {"hidden": [7]}), shape=(5,), classes=4, dim=6, adapter=adapter, dropout=0.5)
    after = torch.rand(1)

    torch.manual_seed(3)
    first = nn.Linear(5, 7)
    if adapter == "linear":
        nn.Linear(7, 6)
    if adapter == "projector":
        nn.Linear(7, 6), nn.Linear(6, 12), nn.Linear(12, 6)
    head = nn.Linear(6, 4)
    assert torch.equal(model.body[1].weight, first.weight)
    assert torch.equal(model.head.weight, head.weight)
    assert torch.equal(torch.rand(1), after)


def test_weights_follow_from_the_seed():
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return build(Member("tiny_mixer"), shape=(1, 8, 8), classes=4, dim=8).state_dict()

    one, same, other = weights(1), weights(1), weights(2)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_layers_that_learn_their_size_from_the_first_input():
    torch.manual_seed(0)
    model = own("lazy", dim=16)
    assert model.body[1].weight.shape == (16, 36)
    # drawn one after the other: no draw is used for both the late layer and the head
    assert not torch.isin(model.body[1].weight * 6, model.head.weight * 4).any()


def test_a_head_with_hidden_layers():
    model = build(Member("mlp", head=(5,)), shape=(3,), classes=4, dim=8)
    assert size(model)["head"] == 8 * 5 + 5 + 5 * 4 + 4


def test_smallest_draws_nothing_and_counts_models_that_need_real_numbers():
    members = [Member("own_models:backwards"), Member("own_models:needy"), Member("cnn")]
    state = torch.get_rng_state()
    assert smallest(members, shape=IMAGE, classes=4, dim=8) == Member("own_models:needy")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("adapter", ["pool", "linear", "projector"])
@pytest.mark.parametrize("head", [(), (5,)], ids=["", "deep"])
def test_features_and_scores_are_as_wide_as_agreed(adapter, head):
    model = build(Member("tiny_cnn", head=head), shape=(1, 8, 8), classes=4, dim=9, adapter=adapter)
    x = torch.randn(3, 1, 8, 8)
    assert model.features(x).shape == (3, 9)
    assert model(x).shape == (3, 4)
