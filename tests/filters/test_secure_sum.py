"""The protocol of secure sums: the sum is exact whoever drops out, and a single upload tells nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protea.core.errors import ClientError, PayloadError
from protea.core.memory import Memory
from protea.core.message import Named
from protea.core.rng import Streams
from protea.filters.secure.client_side import MEMORY, SummingClient
from protea.filters.secure.fixed_point import FixedPoint
from protea.filters.secure.server_side import Attempt, TooFewSitesError, expect_keys
from protea.filters.secure.shares import PRIME, SECRET, combine, split
from protea.filters.secure.state import SumState
from protea.filters.secure_sum import SecureSum

POINT = FixedPoint(step=2.0**-16, bits=64)


def upload(id: int) -> Named:
    """Multiples of the step, so that sums must be exact."""
    draws = torch.Generator().manual_seed(id)
    return {
        "vectors": torch.randint(-(2**20), 2**20, (3, 4), generator=draws).double() * POINT.step,
        "counts": torch.randint(100, (3,), generator=draws).double(),
    }


def party(id: int, memory: Memory | None = None, round: int = 1, filter: SecureSum | None = None) -> SummingClient:
    filter = filter or SecureSum()
    draws = Streams(5).at("client", id, "round", round)
    return SummingClient(id, round, Memory() if memory is None else memory, draws.key, POINT, filter.need, filter.least)


class Game:
    """One attempt, step by step; ``drops`` are the clients that say nothing from a step on."""

    def __init__(self, ids: Sequence[int], round: int = 1, filter: SecureSum | None = None) -> None:
        self.filter = filter or SecureSum()
        self.parties = {id: party(id, round=round, filter=self.filter) for id in ids}
        self.round, self.sent = round, dict[int, Named]()
        self.keys = {id: expect_keys(each.begin(upload(id))) for id, each in self.parties.items()}
        self.attempt = Attempt(round, self.keys, POINT, self.filter.need)

    def again(self, ids: Sequence[int]) -> None:
        """Begin another attempt, with fresh keys."""
        self.keys = {id: expect_keys(self.parties[id].answer("keys", {})) for id in ids}
        self.attempt = Attempt(self.round, self.keys, POINT, self.filter.need)

    def share(self, drops: frozenset[int] = frozenset()) -> Game:
        for id in self.attempt.everyone.clients:
            if id not in drops:
                self.attempt.take_shares(id, self.parties[id].answer("shares", self.attempt.roster()))
        return self

    def mask(self, drops: frozenset[int] = frozenset()) -> Game:
        for id, parcel in self.attempt.parcels().items():
            if id not in drops:
                self.sent[id] = self.parties[id].answer("masked", parcel)
                self.attempt.take_masked(id, self.sent[id])
        return self

    def unmask(self, drops: frozenset[int] = frozenset()) -> Named:
        summed = self.attempt.summed()
        for id in sorted(self.attempt.masked):
            if id not in drops:
                self.attempt.take_unmasked(id, self.parties[id].answer("unmask", summed))
        return self.attempt.total()


def plain(ids: Sequence[int]) -> Named:
    return {name: sum(upload(id)[name] for id in ids) for name in ("vectors", "counts")}  # type: ignore[misc]


def same(found: Named, wanted: Named) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[name], wanted[name]) for name in wanted)


@st.composite
def dropouts(draw: st.DrawFn) -> tuple[list[int], list[frozenset[int]]]:
    """Some clients, and who is lost before each of the three steps."""
    ids = sorted(draw(st.sets(st.integers(0, 30), min_size=3, max_size=7)))
    return ids, [draw(st.frozensets(st.sampled_from(ids), max_size=3)) for _ in range(3)]


@settings(max_examples=60, deadline=None)
@given(dropouts(), st.sampled_from([0.5, 2 / 3, 0.8]))
def test_any_dropouts_above_the_threshold_leave_the_exact_sum(
    given: tuple[list[int], list[frozenset[int]]], threshold: float
):
    ids, (before_shares, before_masked, before_unmasking) = given
    filter = SecureSum(threshold=threshold)
    game, need = Game(ids, filter=filter), filter.need(len(ids))
    sharers = set(ids) - before_shares
    summed = sorted(sharers - before_masked)
    tellers = set(summed) - before_unmasking
    if min(len(sharers), len(summed), len(tellers)) >= need:
        found = game.share(before_shares).mask(before_masked).unmask(before_unmasking)
        assert same(found, plain(summed)) and len(summed) >= 3
    else:
        with pytest.raises(TooFewSitesError, match=f"{need} must"):
            game.share(before_shares).mask(before_masked).unmask(before_unmasking)
        left = sorted(tellers)
        if len(left) < 3:
            return
        game.again(left)  # begun anew with those that are left, who have trained and need not train again
        if len(summed) >= need and left != summed:  # some have helped to unmask another sum already
            with pytest.raises(PayloadError, match="their difference would tell"):
                game.share().mask().unmask()
        else:
            assert same(game.share().mask().unmask(), plain(left))


def test_masks_of_different_rounds_and_attempts_never_repeat():
    def masks(game: Game) -> list[bytes]:
        game.share().mask()
        plain = {id: POINT.words(upload(id), 4) for id in game.sent}
        return [(POINT.received(game.sent[id]) - plain[id]).tobytes() for id in game.sent]

    first, second = Game(range(4), round=1), Game(range(4), round=2)
    seen = [*masks(first), *masks(second)]
    first.again(range(4))
    seen += masks(first)
    assert len(set(seen)) == 12
    words = np.concatenate([np.frombuffer(each, "<u8") for each in seen])
    assert len(set(words.tolist())) == len(words)  # not even one number of them


def test_a_masked_upload_looks_like_chance():
    wide = {"v": torch.zeros(20_000, dtype=torch.float64)}  # what would show through most plainly
    parties = {id: party(id) for id in range(3)}
    attempt = Attempt(1, {id: expect_keys(each.begin(wide)) for id, each in parties.items()}, POINT, SecureSum().need)
    for id, each in parties.items():
        attempt.take_shares(id, each.answer("shares", attempt.roster()))
    sent = [POINT.received(parties[id].answer("masked", parcel)) for id, parcel in attempt.parcels().items()]
    for words in sent:
        octets = np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)
        expected = octets.sum() / 256
        chi = ((octets - expected) ** 2 / expected).sum()
        assert 255 - 5 * 22.6 < chi < 255 + 5 * 22.6  # chi-squared of 255 degrees of freedom, five deviations
        scaled = words / 2.0**64
        assert abs(scaled.mean() - 0.5) < 5 * 0.289 / len(words) ** 0.5
        assert abs(np.corrcoef(scaled[:-1], scaled[1:])[0, 1]) < 5 / len(words) ** 0.5
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(sent[one] / 2.0**64, sent[other] / 2.0**64)[0, 1]) < 5 / len(sent[0]) ** 0.5
    assert not (sent[0] + sent[1] + sent[2] == 0).any()  # without the seeds even the sum says nothing


# What a client refuses


def prepared(step: str = "shares") -> tuple[Game, SummingClient]:
    game = Game(range(5))
    if step != "shares":
        game.share()
    if step == "unmask":
        game.mask()
    return game, game.parties[0]


def without(named: Named, client: int) -> Named:
    rows = named["clients"] != client
    return {name: tensor[rows] for name, tensor in named.items()}


def other_keys(roster: Named) -> Named:
    public = roster["public"].clone()
    public[0] += 1
    return {**roster, "public": public}


def copied(roster: Named) -> Named:
    public = roster["public"].clone()
    public[1] = public[2]
    return {**roster, "public": public}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda roster: without(roster, 0), "in which client 0 is not, or has other keys"),
        (other_keys, "in which client 0 is not, or has other keys"),
        (copied, "two clients came with the same key"),
        (lambda roster: {name: tensor[:2] for name, tensor in roster.items()}, "a sum over 2 clients was asked for; 3"),
        (lambda roster: {**roster, "clients": roster["clients"].flip(0)}, "not in ascending order"),
        (lambda roster: {**roster, "public": roster["public"][:, :1]}, "keys of shape"),
        (lambda roster: {}, "a list of clients and their keys was expected"),
    ],
)
def test_a_client_shares_its_secrets_only_with_a_list_that_can_be(change: Callable[[Named], Named], complaint: str):
    game, client = prepared()
    with pytest.raises(PayloadError, match=f"client 0, round 1: .*{complaint}"):
        client.answer("shares", change(game.attempt.roster()))


def test_a_key_of_low_order_is_refused():
    game, client = prepared()
    roster = game.attempt.roster()
    roster["public"][3, 0] = 0
    with pytest.raises(PayloadError, match="a public key came that is none"):
        client.answer("shares", roster)
    with pytest.raises(PayloadError, match="a public key came that is none"):
        expect_keys({"public": roster["public"][3]})  # nor does the server pass it on
    with pytest.raises(PayloadError, match="public were expected; nothing arrived"):
        expect_keys({})


def test_keys_are_shared_once_and_used_once():
    game, client = prepared("masked")
    with pytest.raises(PayloadError, match="these keys were shared already"):
        client.answer("shares", without(game.attempt.roster(), 4))
    parcel = game.attempt.parcels()[0]
    client.answer("masked", parcel)
    with pytest.raises(PayloadError, match="masked by these keys already"):
        client.answer("masked", without(parcel, 4))


def test_a_client_masks_only_with_enough_others_whose_shares_it_can_read():
    game, client = prepared("masked")
    parcel = game.attempt.parcels()[0]
    few = without(without(parcel, 4), 3)
    with pytest.raises(PayloadError, match="3 clients of 5 are left; 4 must be in a sum"):
        client.answer("masked", few)
    changed = {**parcel, "shares": parcel["shares"] + 1}
    with pytest.raises(PayloadError, match="what client 0 has sealed for client 0 was changed on its way"):
        client.answer("masked", changed)
    swapped = {**parcel, "shares": parcel["shares"][[0, 2, 1, 3, 4]]}
    with pytest.raises(PayloadError, match="what client 1 has sealed for client 0 was changed"):
        client.answer("masked", swapped)
    assert len(client.answer("masked", parcel)) == 2  # nothing was spoilt


def test_nobody_is_told_both_the_seed_and_the_key_of_a_client():
    game, client = prepared("unmask")
    everybody = game.attempt.summed()
    with pytest.raises(PayloadError, match="3 clients of 5 are left; 4 must be"):
        client.answer("unmask", {"clients": torch.tensor([0, 1, 2])})
    with pytest.raises(PayloadError, match="or others that have no part"):
        client.answer("unmask", {"clients": torch.tensor([0, 1, 2, 9])})
    told = client.answer("unmask", {"clients": torch.tensor([0, 1, 2, 3])})["shares"]  # client 4 is missing
    assert told.shape == (5, 33)
    for asked in (everybody, {"clients": torch.tensor([0, 1, 2, 3])}):
        with pytest.raises(PayloadError, match="this client has shared no secrets in this attempt"):
            client.answer("unmask", asked)
    state = client.memory[MEMORY]
    assert isinstance(state, SumState) and not len(state.private) and state.shares is None and state.seed is None


def test_the_sum_of_other_clients_in_the_same_round_is_not_unmasked():
    game, _ = prepared("unmask")
    game.unmask()
    game.again(range(4))  # one less: the difference of both sums would be its upload
    with pytest.raises(PayloadError, match="their difference would tell"):
        game.share().mask().unmask()
    game.again(range(5))
    assert same(game.share().mask().unmask(), plain(range(5)))  # the same sum says nothing new


def test_after_another_training_of_the_round_other_clients_are_summed():
    """What docs/secure-sums.md says that this does not stop: a coordinator that asks for a training twice."""
    game, _ = prepared("unmask")
    whole = game.unmask()
    keys = {id: expect_keys(game.parties[id].begin(upload(id))) for id in range(4)}
    game.attempt = Attempt(game.round, keys, POINT, game.filter.need)
    rest = game.share().mask().unmask()
    assert same({name: whole[name] - rest[name] for name in rest}, plain([4]))


def test_steps_that_were_not_prepared_are_refused():
    client = party(0)
    with pytest.raises(PayloadError, match="client 0, round 1: this client has nothing to add to a sum of round 1"):
        client.answer("shares", {})
    client.begin(upload(0))
    with pytest.raises(PayloadError, match="has nothing to add to a sum of round 2"):
        party(0, client.memory, round=2).answer("keys", {})
    for step in ("masked", "unmask"):
        with pytest.raises(PayloadError, match="has shared no secrets in this attempt"):
            client.answer(step, {"clients": torch.tensor([0, 1, 2])})


def test_a_client_goes_on_from_its_saved_memory():
    game = Game(range(4))
    for step in (game.share, game.mask):
        step()
        for id, each in game.parties.items():
            tensors, index = each.memory.flat()
            again = Memory()
            again.restore(tensors, index)
            game.parties[id] = replace(each, memory=again)
    assert same(game.unmask(), plain(range(4)))


# What the server refuses


def test_shares_that_were_not_shared_are_noticed():
    game, _ = prepared("unmask")
    summed = game.attempt.summed()
    for id, each in game.parties.items():
        told = each.answer("unmask", summed)
        if id == 1:
            told["shares"][2, 5] += 1
        game.attempt.take_unmasked(id, told)
    with pytest.raises(PayloadError, match=r"shares of client 2's seed are not|do not fit together"):
        game.attempt.total()


def test_an_upload_of_another_shape_is_left_out_and_made_up_for():
    game = Game(range(5)).share()
    for id, parcel in game.attempt.parcels().items():
        up = game.parties[id].answer("masked", parcel)
        game.attempt.take_masked(id, up if id != 2 else {**up, "counts": up["counts"][:2]})
    assert game.attempt.odd() == [2]
    assert same(game.unmask(), plain([0, 1, 3, 4]))
    with pytest.raises(PayloadError, match=r"a masked upload was expected, in tensors of torch.int64"):
        game.attempt.take_masked(0, {"v": torch.zeros(3)})


# Parts


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.integers(0, 6), st.randoms(use_true_random=False))
def test_any_threshold_shares_give_the_secret(secret: bytes, threshold: int, more: int, random: object):
    shares = split(secret, threshold, threshold + more, b"5" * 32)
    places = random.sample(range(1, threshold + more + 1), threshold)  # type: ignore[attr-defined]
    assert combine({place: shares[place - 1] for place in places}) == secret
    if threshold > 1:
        with contextlib.suppress(PayloadError):
            assert combine({place: shares[place - 1] for place in places[1:]}) != secret


def test_shares_by_hand():
    assert PRIME > 2**256 and pow(3, PRIME - 1, PRIME) == 1
    line = {place: (7 + 5 * place).to_bytes(33, "big") for place in (2, 4)}  # y = 7 + 5 x
    assert combine(line) == (7).to_bytes(SECRET, "big")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1000, 1000), min_size=1, max_size=20), st.sampled_from([32, 64]))
def test_numbers_come_back_to_half_a_step(numbers: list[float], bits: int):
    point = FixedPoint(2.0**-12, bits)
    tensor = {"a": torch.tensor(numbers, dtype=torch.float64)}
    words = point.words(tensor, 3)
    back = point.tensors(words + words - words, (("a", (len(numbers),)),))["a"]
    assert float((back - tensor["a"]).abs().max()) <= 2.0**-13


def test_numbers_that_may_not_fit_are_refused_at_the_client():
    point = FixedPoint(2.0**-24, 32)
    assert point.largest(4) == pytest.approx(32, rel=1e-6)
    point.words({"v": torch.tensor([31.9])}, 4)
    with pytest.raises(
        ClientError, match=r"v holds 33, which secure_sum cannot add up: .* 32 bits, 4 sites may have numbers up to 32"
    ):
        point.words({"v": torch.tensor([33.0])}, 4)
    for odd in (float("nan"), float("inf")):
        with pytest.raises(ClientError, match="cannot add up"):
            point.words({"v": torch.tensor([odd])}, 4)
