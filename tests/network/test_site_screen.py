"""What a site's own screen shows, and a policy that is changed while the site takes part."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
from test_own_keys import short

from protea.core.errors import PolicyError
from protea.core.message import Named
from protea.engines.messages import reply_from_bytes
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.directory import Site
from protea.network.site.join import ending, tell_progress
from protea.network.site.progress import NAME, SiteProgress, keep_progress, read_progress
from protea.network.site.service import SiteService


@pytest.fixture
def base(tmp_path: Path) -> CoordinatorDirectory:
    return places.base(tmp_path / "base")


def ask(service: SiteService, base: CoordinatorDirectory, what: str, down: Named | None = None) -> bytes:
    answer = service.handle("job", base.signer("job", places.job(what, 1, 0, down)))  # type: ignore[arg-type]
    return places.only(answer)


def test_a_screen_shows_the_accuracy_that_the_policy_hides(tmp_path: Path, base: CoordinatorDirectory) -> None:
    """Rounded for others, exact here."""
    site = places.site(tmp_path / "north", base.invite("north"), policy='counts = "hidden"\n')
    service = SiteService(site)
    up = reply_from_bytes(ask(service, base, "train")).up
    assert read_progress(site.path) is None
    ask(service, base, "evaluate", up)
    found = read_progress(site.path)
    assert found is not None and (found.round, found.rounds, found.alone) == (1, 4, None)
    assert found.accuracy is not None and 0 < found.accuracy <= 1
    hits = found.accuracy * len(site.share.test)
    assert hits == pytest.approx(round(hits))  # of all its test samples, not of a hundred
    said: list[str] = []
    assert (
        tell_progress(site.path, None, said.append) == found and tell_progress(site.path, found, said.append) == found
    )
    assert said == [f"Round 1 of 4: accuracy here {100 * found.accuracy:.1f} %."]


def test_the_accuracy_of_training_alone_is_shown_where_it_is_known(tmp_path: Path) -> None:
    keep_progress(tmp_path, SiteProgress(2, 4, 0.5, 0.25))
    said: list[str] = []
    tell_progress(tmp_path, None, said.append)
    assert said == ["Round 2 of 4: accuracy here 50.0 %; trained alone 25.0 %."]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"round": "x", "rounds": 1}', "[" * 100_000, "\udcff", '{"round": 1}']
)
def test_progress_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_bytes(text.encode(errors="surrogateescape"))
    assert read_progress(tmp_path) is None


def test_what_ends_is_told_thirty_days_ahead(tmp_path: Path, base: CoordinatorDirectory) -> None:
    short(base.path / "keys", "ca", 40)
    today = dt.datetime.now(dt.UTC).date()
    policy = f"expires = {today + dt.timedelta(days=35)}\n"
    site = places.site(tmp_path / "north", base.invite("north"), policy=policy)
    assert ending(site.path) == []
    assert [each.partition(": ")[0].rpartition("/")[2] for each in ending(site.path, today + dt.timedelta(days=6))] == [
        "policy.toml"
    ]
    authority, how, _ = ending(site.path, today + dt.timedelta(days=11))
    assert "authority ends on" in authority and "--renew" in how
    (site.path / "policy.toml").write_text("[" * 50_000)
    assert len(ending(site.path, today + dt.timedelta(days=11))) == 2


# policy.toml, changed while the site takes part


def rewrite(site: Site, text: str) -> None:
    path = site.path / "policy.toml"
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(before + 10**9, before + 10**9))  # a clock may be coarse


def test_a_changed_policy_acts_from_the_next_job_on(tmp_path: Path, base: CoordinatorDirectory) -> None:
    site = places.site(tmp_path / "north", base.invite("north"), policy=places.ALL)
    service = SiteService(site)
    exact = reply_from_bytes(ask(service, base, "train"))
    assert exact.metrics.keys() == {"loss"} and (exact.up["counts"] % 10 != 0).any()
    rewrite(site, 'report = "none"\n')
    with pytest.raises(PolicyError, match='has counts = "rounded", and does not allow it'):
        ask(service, base, "train")  # what was kept on disk tells more than is allowed now
    (site.path / "policy.toml").unlink()
    rewrite(site, 'methods = ["local"]\n')
    with pytest.raises(PolicyError, match="does not allow this task"):
        ask(service, base, "evaluate")


def test_by_a_policy_that_cannot_be_read_nothing_leaves(tmp_path: Path, base: CoordinatorDirectory) -> None:
    site = places.site(tmp_path / "north", base.invite("north"), policy=places.ALL)
    service = SiteService(site)
    ask(service, base, "train")
    rewrite(site, "report = ")
    for _ in range(2):
        with pytest.raises(PolicyError, match=r"^site north: its policy was changed, and cannot be read\.$"):
            ask(service, base, "train")
    last = json.loads((site.path / "audit.jsonl").read_text().splitlines()[-1])
    assert last["task"] == "refused" and "cannot be read" in last["words"]
    rewrite(site, places.ALL)
    assert reply_from_bytes(ask(service, base, "train")).error is None
