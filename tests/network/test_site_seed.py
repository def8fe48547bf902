"""A site's secret seed: what nobody else can rebuild, and what still ends the same after any interruption."""

from __future__ import annotations

import stat
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
import torch
from torch import Tensor

from protea.clients.worker import Worker
from protea.core.errors import ConfigError, PolicyError
from protea.core.rng import Streams
from protea.engines.messages import reply_from_bytes
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.check import trial
from protea.network.site.directory import Site
from protea.network.site.seed import secret_seed, seed_of_task
from protea.network.site.service import SiteService
from protea.network.site.statement import make_statement

ONE_NINE = """
    x, y = load_digits(return_X_y=True)
    x = x.astype("float32") / 16
    rows = np.flatnonzero((y != 9) | (np.cumsum(y == 9) == 1))[:150]
    return x[rows], y[rows], x[-50:], y[-50:]
"""
BEFORE = {"name": "fedproto", "taken": "before"}


@pytest.fixture
def base(tmp_path: Path) -> CoordinatorDirectory:
    return places.base(tmp_path / "base")


def weights(site: Site) -> list[Tensor]:
    return [p.detach() for p in Worker(site.plan()).client(site.id).model.parameters()]


def rebuilt(site: Site) -> list[Tensor]:
    """What a coordinator draws that knows the task, its seed, and the code of the site's model."""
    with Streams(site.task.seed).at("client", site.id).default("model"):
        return [p.detach() for p in site.model().parameters()]


# The file


def test_it_is_long_private_and_drawn_once(tmp_path: Path) -> None:
    path = tmp_path / "seed"
    first = secret_seed(path)
    assert len(first) == 32 and secret_seed(path) == first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["seed"]  # nothing is left beside it
    assert secret_seed(tmp_path / "other") != first


def test_of_two_processes_that_draw_at_once_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    link = os.link

    def late(source: Path, target: Path) -> None:
        target.write_text("ab" * 32)  # the other was faster
        target.chmod(0o600)
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert secret_seed(tmp_path / "seed") == b"\xab" * 32


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        ("ab" * 32, 0o644, "chmod 600"),
        ("ab" * 15, 0o600, "must hold 64 hexadecimal digits, and has 30"),
        ("word", 0o600, "cannot be read"),
        ("", 0o600, "has 0"),
    ],
)
def test_one_that_is_none_is_refused(tmp_path: Path, content: str, mode: int, complaint: str) -> None:
    path = tmp_path / "seed"
    path.write_text(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=complaint):
        secret_seed(path)


def test_no_two_tasks_draw_the_same() -> None:
    assert seed_of_task(b"a" * 32, "task") != seed_of_task(b"a" * 32, "other") != seed_of_task(b"b" * 32, "other")


# Draws


def test_all_bits_of_a_secret_count_in_torchs_generator() -> None:
    """``manual_seed`` takes 32 bits of a number, which can all be tried: the state holds 624 words of 32 instead."""
    same = [torch.rand(4, generator=torch.Generator().manual_seed(seed)) for seed in (7, 7 + 2**32)]
    assert torch.equal(*same)
    streams = Streams(b"s" * 32)
    state = streams.generator("model").get_state()
    words = state[24 : 24 + 8 * 624].view(torch.int64)
    assert int(words.max()) < 2**32 and len(words.unique()) == 624
    seeded = torch.Generator().manual_seed(streams.seed("model")).get_state()
    assert not (words == seeded[24 : 24 + 8 * 624].view(torch.int64)).any()
    assert torch.equal(state[:24], seeded[:24]) and torch.equal(state[24 + 8 * 624 :], seeded[24 + 8 * 624 :])


def test_secret_streams_repeat_themselves_and_differ_by_name() -> None:
    streams = Streams(b"s" * 32).at("client", 3)
    draws = [torch.randn(5, generator=streams.generator(name)) for name in ("a", "a", "b")]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    with streams.default("a"):
        assert torch.equal(torch.randn(5), draws[0])
    assert np.array_equal(streams.numpy("a").random(3), streams.numpy("a").random(3))
    uniform = torch.rand(100_000, generator=streams.generator("a"))
    assert abs(float(uniform.mean()) - 0.5) < 0.005 and abs(float(uniform.std()) - 12**-0.5) < 0.005


# At a site


def test_who_knows_the_task_cannot_rebuild_the_first_model(tmp_path: Path, base: CoordinatorDirectory) -> None:
    site = places.site(tmp_path / "site", base.invite("north"))
    (site.path / "seed").unlink()  # it draws one
    shared = places.site(tmp_path / "shared", base.invite("south"), settings='seed = "task"\n')
    assert all(torch.equal(one, other) for one, other in zip(weights(shared), rebuilt(shared), strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(weights(site), rebuilt(site), strict=True))


def test_the_attack_that_found_a_single_sample_finds_nothing(tmp_path: Path) -> None:
    """A coordinator asks for prototypes before training, and compares them with features of all candidates.

    With the task's seed and no minimum it finds the one sample of a class at distance 0; by default the task is
    refused, and even a site that allows it sends nothing of that class, by a model that nobody can rebuild.
    """
    base = places.base(tmp_path / "base", method=BEFORE)
    python = places.code(data=ONE_NINE)

    def sent(site: Site) -> Tensor:
        answer = SiteService(site).handle("job", base.signer("job", places.job("train", 1, site.id)))
        counts, vectors = (reply_from_bytes(places.only(answer)).up[name] for name in ("counts", "vectors"))
        return vectors[int(counts[:9].gt(0).sum())] if counts[9] else vectors.new_full((vectors.shape[1],), torch.nan)

    def nearest(site: Site, prototype: Tensor) -> tuple[float, int]:
        """Distance and label of the candidate whose feature, by the rebuilt model, fits best."""
        with Streams(site.task.seed).at("client", site.id).default("model"):
            model = site.model().eval()
        away = (model.features(site.dataset.x).detach() - prototype).norm(dim=1)
        return float(away.min()), int(site.dataset.y[away.argmin()])

    leaky = places.site(tmp_path / "leaky", base.invite("leaky"), python, 'seed = "task"\n', places.ALL)
    found = nearest(leaky, sent(leaky))
    assert found[0] < 1e-5 and found[1] == 9

    secret = places.site(tmp_path / "secret", base.invite("secret"), python, "", places.ALL)
    assert nearest(secret, sent(secret))[0] > 0.05

    small = places.site(
        tmp_path / "small", base.invite("small"), python, 'seed = "task"\n', '[refused]\n"method.taken" = []\n'
    )
    assert sent(small).isnan().all()

    with pytest.raises(PolicyError, match=r"refused.*before"):
        sent(places.site(tmp_path / "default", base.invite("default"), python))


def test_a_site_begins_the_same_each_time_and_no_two_alike(tmp_path: Path, base: CoordinatorDirectory) -> None:
    one, other = (places.site(tmp_path / name, base.invite(name)) for name in ("one", "other"))
    assert all(map(torch.equal, weights(one), weights(Site(one.path))))
    assert torch.equal(one.share.test, Site(one.path).share.test)
    assert not torch.equal(one.share.test, other.share.test)
    assert not any(map(torch.equal, weights(one), weights(other)))


def test_a_site_that_was_stopped_goes_on_to_the_bit(tmp_path: Path, base: CoordinatorDirectory) -> None:
    bundle = base.invite("north")
    answers = []
    for name, stops in (("straight", False), ("stopped", True)):
        site = places.site(tmp_path / name, bundle)
        places.give_seed(site.path, "same")
        service = SiteService(site)
        for round in (1, 2):
            answer = service.handle("job", base.signer("job", places.job("train", round)))
            service = SiteService(Site(site.path)) if stops else service
        answers.append(reply_from_bytes(places.only(answer)).up)
    assert all(torch.equal(answers[0][name], answers[1][name]) for name in ("vectors", "counts"))


def test_a_state_whose_seed_was_lost_is_not_trained_on_other_samples(
    tmp_path: Path, base: CoordinatorDirectory
) -> None:
    site = places.site(tmp_path / "site", base.invite("north"))
    SiteService(site).handle("job", base.signer("job", places.job("train", 1)))
    (site.path / "seed").unlink()
    with pytest.raises(ConfigError, match=r'seed is missing(.|\n)*move .*state away(.|\n)*seed = "task"'):
        Site(site.path).restored()


def test_another_task_is_drawn_anew(tmp_path: Path) -> None:
    sites = []
    for rounds in (4, 5):
        base = places.base(tmp_path / f"base{rounds}", rounds=rounds)
        site = places.site(tmp_path / f"site{rounds}", base.invite("north"))
        places.give_seed(site.path, "same")
        sites.append(site)
    assert not any(map(torch.equal, *map(weights, sites)))


def test_a_site_that_shares_its_seed_or_its_weights_is_warned(tmp_path: Path, base: CoordinatorDirectory) -> None:
    def warned(site: Site) -> str:
        return " ".join(make_statement(site, trial(site)).warnings)

    plain = places.site(tmp_path / "plain", base.invite("plain"))
    assert "rebuild" not in warned(plain) and "same weights" not in warned(plain)
    assert "whoever knows the task can rebuild" in warned(
        places.site(tmp_path / "shared", base.invite("shared"), settings='seed = "task"\n')
    )
    fixed = places.code(model="\n    torch.manual_seed(3)" + places.MODEL)
    assert "model() begins with the same weights" in warned(
        places.site(tmp_path / "fixed", base.invite("fixed"), fixed)
    )
