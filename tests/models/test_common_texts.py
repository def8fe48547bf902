"""A view of texts that all clients share, beside that of each model."""

from __future__ import annotations

import pytest
import torch
from wanted import encoder

from protea.config.families import Member, Models
from protea.core.errors import ClientError
from protea.core.split_model import PairedBody, PairedView
from protea.models.common_texts import BUCKETS, HashedCounts, common_view
from protea.models.maker import ModelMaker

TEXTS = ["Chest pain since Monday, chest pain.", "", "A swollen knee"]


def maker(common: str | None) -> ModelMaker:
    return ModelMaker(Models("bag", dim=8), (), 3, common_view=common)


def test_words_and_pairs_are_counted_in_buckets_by_their_checksum():
    found = HashedCounts()(TEXTS)
    assert found.shape == (3, BUCKETS) and (found[1] == 0).all()
    assert [int((row != 0).sum()) for row in found] == [12, 0, 5]  # six words and signs, six pairs
    torch.testing.assert_close(found[[0, 2]].square().mean(1), torch.ones(2))
    weights = sorted(set(found[0].abs().round(decimals=4).tolist()))
    assert weights[2] / weights[1] == pytest.approx(torch.log(torch.tensor(3.0)).item() / 0.693147, rel=1e-3)


def test_a_model_reads_its_own_part_and_the_method_the_common_one():
    torch.manual_seed(0)
    plain = maker(None)(Member.of("bag"))
    torch.manual_seed(0)
    paired = maker("words")(Member.of("bag"))
    assert isinstance(paired.body, PairedBody) and isinstance(paired.view, PairedView) and plain.view is not None
    x = paired.view(TEXTS)
    assert torch.equal(plain(plain.view(TEXTS)), paired(x))  # to the bit
    assert torch.equal(paired.common(x), HashedCounts()(TEXTS))
    assert "counts/1" in paired.view.key and plain.view.key in paired.view.key


def test_models_of_different_views_have_the_same_common_part():
    views = [maker("words")(Member.of({"name": "bag", "length": n, "buckets": 50 * n})).view for n in (4, 9)]
    ends = [view.common_part(view(TEXTS)) for view in views if isinstance(view, PairedView)]
    assert torch.equal(*ends)


def test_numbers_are_common_as_they_are_and_texts_without_a_common_view_are_refused():
    numbers = ModelMaker(Models("tiny_mlp", dim=8), (1, 8, 8), 3, common_view="words")(Member.of("tiny_mlp"))
    x = torch.zeros(2, 1, 8, 8)
    assert numbers.common(x) is x
    plain = maker(None)(Member.of("bag"))
    with pytest.raises(ClientError, match="common_view"):
        plain.common(torch.zeros(2, 256))


def test_a_frozen_encoder_can_be_the_common_view():
    encoder()
    found = common_view("minilm")(TEXTS)
    assert found.shape == (3, 384)
    torch.testing.assert_close(found.square().mean(1), torch.ones(3))
