import torch

from protea.core.rng import Streams


def test_a_stream_is_a_function_of_seed_and_path_alone():
    stream = Streams(7).at("client", 3).at("round", 12)
    torch.rand(5)  # whatever was drawn before
    assert stream.seed("batches") == Streams(7, "client/3/round/12/").seed("batches")
    assert torch.equal(
        torch.randperm(9, generator=stream.generator("batches")),
        torch.randperm(9, generator=stream.generator("batches")),
    )


def test_seeds_stay_the_same_from_version_to_version():
    assert Streams(1).seed("x") == 5905128635911088917
    assert Streams(1).at("client", 0).generator("batches").initial_seed() == Streams(1, "client/0/").seed("batches")


def test_different_names_give_different_streams():
    seeds = {Streams(s).at("client", c).seed(p) for s in range(3) for c in range(20) for p in ("batches", "init")}
    assert len(seeds) == 3 * 20 * 2


def test_default_draws_come_from_the_stream_and_leave_the_rest_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with Streams(1).default("dropout"):
        inside = torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
    with Streams(1).default("dropout"):
        assert torch.equal(torch.rand(3), inside)
