from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import toy
from wanted import encoder

import protea
from protea import Prototypes, Upload
from protea.config.experiment import Experiment, load_experiment
from protea.config.sections import Engine
from protea.core.errors import ConfigError, PayloadError, PluginError
from protea.core.rng import Streams
from protea.core.server import Server
from protea.methods.fedtsp import FedTSP, TextPrototypes, texts_of
from protea.models import prompted
from protea.models.prompted import PromptedTexts, prompt_encoder
from protea.network.task import new_server, parse_task
from protea.runs.prepare import prepare
from protea.runs.warnings import about_names

WORDS = FedTSP(encoder="words")


def started(method: FedTSP = WORDS, names: tuple[str, ...] = ("cat", "dog", "truck"), dim: int = 8) -> Server:
    made = Server(len(names), dim, Streams(0), names=names)
    with Streams(0).default("start"):
        method.start_server(made)
    return made


def sent(*vectors: list[float]) -> list[Upload[Prototypes]]:
    full = torch.tensor(vectors)
    return [Upload(0, Prototypes(full, full.any(1).float()), 5)]


# Texts


def test_names_stand_in_the_template_and_descriptions_after_it(tmp_path: Path):
    assert texts_of(["cat", "polar_bear"], "a {}", "") == [["a cat"], ["a polar bear"]]
    path = tmp_path / "told.json"
    path.write_text(json.dumps({"cat": ["small", "with fur"], "dog": ["loyal"], "more": 3}))
    found = texts_of(["cat", "dog"], "A photo of a {}.", str(path))
    assert found == [["A photo of a cat: small", "A photo of a cat: with fur"], ["A photo of a dog: loyal"]]


@pytest.mark.parametrize("content", ["{", "[]", '{"cat": []}', '{"cat": "fur"}', '{"cat": [""]}', '{"dog": ["x"]}'])
def test_a_file_without_texts_of_a_class_is_refused(content: str, tmp_path: Path):
    path = tmp_path / "told.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"method\.descriptions: .*told\.json"):
        texts_of(["cat"], "{}", str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        texts_of(["cat"], "{}", str(tmp_path / "other.json"))


def test_a_class_with_several_descriptions_is_the_mean_of_their_texts(tmp_path: Path):
    path = tmp_path / "told.json"
    path.write_text(json.dumps({"cat": ["small", "with fur"], "dog": ["loyal"], "truck": ["long"]}))
    made = started(replace(WORDS, descriptions=str(path)))
    texts: PromptedTexts = made.memory["texts"]
    assert texts.of.tolist() == [0, 0, 1, 2]
    words, there = prompted.with_prompts(texts.words, texts.there, texts.prompts[texts.of], "before", 0)
    each = prompt_encoder("words").encode(words, there)
    expected = F.normalize(torch.stack([each[:2].mean(0), each[2], each[3]]) @ texts.projection, dim=1)
    torch.testing.assert_close(made.memory["prototypes"].vectors, expected)


@pytest.mark.parametrize("template", ["a photo", "{} and {}"])
def test_a_template_has_one_place_for_the_name(template: str):
    with pytest.raises(ConfigError, match=r"method\.template"):
        FedTSP(template=template)


def test_classes_without_names_are_their_numbers():
    made = Server(2, 8, Streams(0))
    WORDS.start_server(made)
    words, _ = prompt_encoder("words").read(["A photo of a 0.", "A photo of a 1."])
    assert torch.equal(made.memory["texts"].words, words)


def test_numbers_for_names_are_warned_of():
    assert "All classes have numbers" in about_names(["0", "1"], read=True)["names"]
    assert "1 of 2 classes" in about_names(["0", "dog"], read=True)["names"]
    assert about_names(["0", "1"], read=False) == {} == about_names(["cat"], read=True)


# The server


def test_clients_get_texts_of_length_1_and_the_scale():
    made = started()
    down = WORDS.broadcast(made, 0)
    torch.testing.assert_close(down.texts.vectors.norm(dim=1), torch.ones(3))
    assert down.texts.present.all() and down.scale.item() == pytest.approx(14.3)
    assert WORDS.global_prototypes(made) is made.memory["prototypes"]


def test_one_step_on_the_prompts_by_hand():
    method = replace(WORDS, server_epochs=1, server_lr=0.5, scale=3.0)
    made, again = started(method), started(method)
    ups = sent([1.0] * 8, [0.0] * 8, [2.0] + [0.0] * 7)
    method.aggregate(made, ups)
    texts: PromptedTexts = again.memory["texts"]
    rows = torch.tensor([0, 2])  # nobody sent the second class; its text is among the wrong answers
    cosines = F.normalize(ups[0].payload.vectors[rows], dim=1) @ texts.vectors(prompt_encoder("words"), "before").T
    loss = F.cross_entropy(texts.log_scale.exp() * cosines, rows)
    slopes = torch.autograd.grad(loss, [texts.prompts, texts.log_scale])
    found: PromptedTexts = made.memory["texts"]
    torch.testing.assert_close(found.prompts, texts.prompts - 0.5 * slopes[0])
    torch.testing.assert_close(found.log_scale, texts.log_scale - 0.5 * slopes[1])
    assert made.memory["server_loss"] == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(
        made.memory["prototypes"].vectors, found.vectors(prompt_encoder("words"), "before").detach()
    )


def test_the_scale_may_stay():
    made = started(replace(WORDS, scale_learns=False))
    before = made.memory["texts"].prompts.detach().clone()
    replace(WORDS, scale_learns=False).aggregate(made, sent([1.0] * 8, [0.5] + [0.0] * 7, [0.0] * 8))
    assert made.memory["texts"].log_scale.item() == pytest.approx(math.log(14.3))
    assert not torch.equal(made.memory["texts"].prompts, before)


def test_shared_prompts_are_one_set_for_all_classes():
    assert started(replace(WORDS, shared=True)).memory["texts"].prompts.shape == (1, 5, prompted.WIDTH)
    assert started().memory["texts"].prompts.shape == (3, 5, prompted.WIDTH)


def test_classes_that_nobody_sent_keep_their_last_mean_and_nothing_sent_changes_nothing():
    made = started()
    WORDS.aggregate(made, sent([0.0] * 8, [0.0] * 8, [0.0] * 8))
    assert "server_loss" not in made.memory
    WORDS.aggregate(made, sent([1.0] * 8, [0.0] * 8, [0.0] * 8))
    WORDS.aggregate(made, sent([0.0] * 8, [2.0] * 8, [0.0] * 8))
    assert made.memory["means"].present.tolist() == [True, True, False]


def test_texts_come_nearer_to_what_clients_send():
    made = started(replace(WORDS, server_epochs=50))
    torch.manual_seed(1)
    goal = torch.randn(3, 8)

    def right() -> float:
        return float((F.normalize(goal, dim=1) * made.memory["prototypes"].vectors).sum(1).mean())

    before = right()
    replace(WORDS, server_epochs=50).aggregate(made, sent(*goal.tolist()))
    assert right() > before


# Clients


def test_the_loss_of_a_client(monkeypatch: pytest.MonkeyPatch):
    client, method, centre = toy.ready(), replace(WORDS, weight=2.0), toy.started(WORDS)
    down = method.broadcast(centre, 0)
    x, y = client.train.batch(torch.arange(6))
    seen: list[Any] = []
    monkeypatch.setattr(client, "fit", lambda loss: seen.append(loss(x, y)))
    up = method.local_update(client, down)
    z = client.model.features(x)
    cosines = F.normalize(z, dim=1) @ down.texts.vectors.T
    expected = F.cross_entropy(client.model(x), y) + 2 * F.cross_entropy(14.3 * cosines, y)
    torch.testing.assert_close(seen[0], expected)
    torch.testing.assert_close(up.vectors, client.prototypes().vectors)


def test_it_answers_by_the_head_or_by_texts():
    client, centre = toy.ready(), toy.started(WORDS)
    down = WORDS.broadcast(centre, 0)
    x, _ = client.train.batch(torch.arange(4))
    assert torch.equal(WORDS.predict(client, x, down), client.model(x))
    found = replace(WORDS, answer="texts").predict(client, x, down)
    torch.testing.assert_close(found, F.normalize(client.model.features(x), dim=1) @ down.texts.vectors.T)


def test_what_comes_down_is_checked():
    texts = Prototypes(torch.ones(2, 3), torch.ones(2))
    TextPrototypes(texts, torch.ones(())).check(2, 3)
    for scale in (torch.ones(2), torch.zeros(()), torch.tensor(torch.inf), torch.tensor(3)):
        with pytest.raises(PayloadError):
            TextPrototypes(texts, scale).check(2, 3)


# Encoders


def test_an_encoder_that_is_not_installed_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch):
    def lacking(name: str) -> None:
        raise PluginError("transformers is not installed.  Type, in Protea's folder: pip install -e '.[text]'")

    monkeypatch.setattr("protea.runs.prepare.prompt_encoder", lacking)
    with pytest.raises(PluginError, match=r"pip install -e '.\[text\]'\n.*method.encoder=words needs nothing"):
        prepare(Experiment(method=FedTSP(), clients=2))


def test_the_names_of_the_data_reach_the_server_and_numbers_are_told_in_the_summary():
    digits = Path(__file__).parents[2] / "examples" / "digits.toml"
    changes = ["rounds=1", "clients=2", "data.samples=200", "method=fedtsp@words", "evaluation.shared=never"]
    result = protea.run(replace(load_experiment(digits, changes), engine=Engine("inline")))
    assert "All classes have numbers for names (0, ...)" in result.summary["warnings"]["names"]
    assert result.method == "fedtsp@words"


def test_a_task_needs_no_encoder_at_sites_and_has_no_file(monkeypatch: pytest.MonkeyPatch):
    def lacking(name: str) -> None:
        raise PluginError("not here")

    monkeypatch.setattr("protea.methods.fedtsp.prompt_encoder", lacking)
    text = 'classes = ["cat", "dog"]\nmethod = {name = "fedtsp"}'
    task = parse_task(text, "task.toml")
    assert new_server(task).names == ("cat", "dog")
    with pytest.raises(ConfigError, match=r"task\.toml: method\.descriptions is a file of one machine"):
        parse_task(text.replace('"fedtsp"', '"fedtsp", descriptions = "/etc/hosts"'), "task.toml")


@pytest.mark.xdist_group("test_hf")  # whose process has imported transformers
def test_a_pretrained_encoder_knows_that_a_cat_is_more_like_a_dog_than_like_a_truck():
    encoder()
    made = started(FedTSP(), dim=16)
    vectors = made.memory["prototypes"].vectors
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.1
    before = made.memory["texts"].prompts.detach().clone()
    FedTSP(server_epochs=2).aggregate(made, sent([1.0] * 16, [-1.0] * 16, [1.0, -1.0] * 8))
    assert not torch.equal(made.memory["texts"].prompts, before)
    assert torch.isfinite(made.memory["prototypes"].vectors).all()
