"""Encoders that read prompts among words."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from wanted import encoder

from protea.models.prompted import (
    SPREAD,
    WIDTH,
    HashedWordVectors,
    class_means,
    keeping_angles,
    prompt_encoder,
    with_prompts,
    word_vector,
)


def test_a_text_of_hashed_words_is_the_mean_of_their_vectors():
    words, there = HashedWordVectors().read(["a cat", "Cat"])
    assert words.shape == (2, 2, WIDTH) and there.tolist() == [[True, True], [True, False]]
    found = HashedWordVectors().encode(words, there)
    torch.testing.assert_close(found[1], SPREAD * word_vector("cat", WIDTH))
    torch.testing.assert_close(found[0], SPREAD * (word_vector("a", WIDTH) + word_vector("cat", WIDTH)) / 2)
    assert not torch.equal(word_vector("cat", WIDTH), word_vector("dog", WIDTH))


def test_a_text_without_words_is_zero():
    assert not HashedWordVectors().encode(*HashedWordVectors().read(["", "  "])).any()


def test_prompts_come_after_the_beginning_or_in_place_of_the_first_words():
    words = torch.tensor([[[1.0], [2.0], [3.0]], [[4.0], [5.0], [0.0]]])
    there = torch.tensor([[True, True, True], [True, True, False]])
    prompts = torch.tensor([[[8.0], [9.0]]]).expand(2, -1, -1)
    found, here = with_prompts(words, there, prompts, "before", 1)
    assert found.squeeze(2).tolist() == [[1, 8, 9, 2, 3], [4, 8, 9, 5, 0]]
    assert here[1].tolist() == [True, True, True, True, False]
    found, here = with_prompts(words, there, prompts, "instead", 1)
    assert found.squeeze(2).tolist() == [[8, 9, 3], [8, 9, 0]] and here[1].tolist() == [True, True, False]
    longer = torch.ones(2, 5, 1)
    assert with_prompts(words, there, longer, "instead", 1)[0].shape == (2, 5, 1)  # nothing of the texts is left


def test_means_of_classes():
    found = class_means(torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([1, 1, 0]))
    assert found.tolist() == [[8.0], [2.0]]


@pytest.mark.parametrize(("count", "width", "dim"), [(3, 20, 5), (5, 20, 5), (4, 6, 6), (4, 6, 11)])
def test_the_map_keeps_lengths_and_angles(count: int, width: int, dim: int):
    torch.manual_seed(3)
    vectors = torch.randn(count, width)
    mapped = vectors @ keeping_angles(vectors, dim)
    assert mapped.shape == (count, dim)
    torch.testing.assert_close(mapped @ mapped.T, vectors @ vectors.T, atol=1e-3, rtol=1e-3)


@pytest.mark.xdist_group("test_hf")  # whose process has imported transformers
def test_a_pretrained_encoder_reads_words_as_it_reads_texts():
    encoder()
    from protea.models.common_texts import of_one_length
    from protea.models.hf import FrozenView, locate_encoder

    made, texts = prompt_encoder("minilm"), ["A photo of a cat.", "A truck"]
    usual = FrozenView(locate_encoder("minilm"), 6, "mean", 32)(texts)
    found = made.encode(*made.read(texts)).detach()
    torch.testing.assert_close(of_one_length(found), of_one_length(usual), atol=1e-4, rtol=1e-4)
    words, there = made.read(texts)
    prompts = torch.zeros(2, 3, made.width, requires_grad=True)
    F.normalize(made.encode(*with_prompts(words, there, prompts, "before", made.lead)), dim=1).sum().backward()
    assert prompts.grad is not None and prompts.grad.any()
