"""A site audits itself before it sends anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
from typed import Command

DATA = """
    x, y = load_digits(return_X_y=True)
    x = x.astype("float32").reshape(-1, 1, 8, 8) / 16
    def rows(start, counts):
        return np.concatenate([np.flatnonzero(y == digit)[start : start + n] for digit, n in counts.items()])
    train, test = rows(0, {0: 1, 1: 40, 2: 40}), rows(50, {0: 40, 1: 40, 2: 40})
    return x[train], y[train], x[test], y[test]
"""
# What a careful site does not allow, so that there is something to find.
POLICY = 'min_samples_per_class = 1\ncounts = "exact"\nreport = "full"\nrefused = { "method.taken" = [] }\n'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site with one training sample of the digit 0, and many of two others."""
    bundle = places.base(tmp_path / "base", "method.taken=before").invite("north")
    found = places.site(tmp_path / "site", bundle, places.code(data=DATA), "[split]\nvalidation = 0.0\n").path
    (found / "policy.toml").write_text(POLICY)
    return found


def test_a_site_finds_its_one_sample_class_before_it_is_sent(site: Path, typed: Command, tmp_path: Path):
    before = {file: file.read_bytes() for file in site.rglob("*") if file.is_file()}
    said = typed("audit", site, "--rounds", "1", "--shadows", "2", "--json", tmp_path / "a.json")
    assert said.code == 0 and "Audit of site north" in said.out and "Nothing was sent" in said.out, said
    found = json.loads((tmp_path / "a.json").read_text())
    verdicts = {each["class"]: each["verdict"] for each in found["classes"]}
    exact = [each for each in found["findings"] if each["attack"] == "linkage" and each["number"] == 1]
    assert verdicts["zero"] == "leaks" and "zero" in {each["label"] for each in exact}
    assert {file: file.read_bytes() for file in before} == before
    assert not (site / "state").exists() and not (site / "audit.jsonl").exists()


def test_the_check_of_a_site_can_end_with_its_audit(site: Path, typed: Command):
    said = typed("site", "check", "--dir", site, "--audit")
    assert said.code == 0 and "Audit of site north" in said.out and "Classes: " in said.out
    page = said.out[said.out.index("Warnings: ") :]
    assert page.index("1. The audit found that it leaks: zero") < page.index("What leaves")
    assert "Not ready: zero" in page and "Ready." not in page
    assert "[leaks]" not in page and "[watch]" not in page  # the table has a column for that


def test_a_site_that_sends_under_a_mask_is_told_so(typed: Command, tmp_path: Path):
    base = places.base(tmp_path / "base", quorum=3, filters=[{"name": "secure_sum"}])
    site = places.site(tmp_path / "site", base.invite("north"), places.code(data=DATA), policy=POLICY)
    said = typed("site", "check", "--dir", site.path, "--audit")
    assert said.code == 0 and "leaves under a mask" in said.out and "No number of training samples" in said.out, said
    assert "The audit found that it leaks" not in said.out and "Not attacked" in said.out


def test_a_site_is_one_client(site: Path, typed: Command):
    said = typed("audit", site, "--client", "0")
    assert said.code == 2 and "a site is one client" in said.err
