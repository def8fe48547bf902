"""The statement of ``protea site check``: warnings first, every class accounted for, and a page to sign."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typed import Command

pytest.importorskip("flwr", reason="lacking: extra flower")

import places

from protea.cli.site_statement import statement_document
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.check import trial
from protea.network.site.directory import Site
from protea.network.site.statement import Finding, make_statement
from protea.report.document import Document, DocumentSection, DocumentTable, document_page

RARE = """
    x, y = load_digits(return_X_y=True)
    x, y = x[:400].astype("float32") / 16, y[:400]
    keep = ((y != 9) | (np.cumsum(y == 9) == 1)) & ((y != 8) | (np.cumsum(y == 8) <= 7)) & (y != 7)
    return x[keep], y[keep], x[:100], y[:100]
"""  # one nine, seven eights of which six are trained on, no seven


@pytest.fixture
def base(tmp_path: Path) -> CoordinatorDirectory:
    return places.base(tmp_path / "base")


@pytest.fixture
def site(tmp_path: Path, base: CoordinatorDirectory) -> Site:
    return places.site(tmp_path / "north", base.invite("north"), places.code(data=RARE))


def test_every_class_is_accounted_for(site: Site) -> None:
    found = {each.name: each for each in make_statement(site, trial(site)).classes}
    assert list(found) == list(places.CLASSES)
    assert (found["nine"].samples, found["nine"].held_back) == (1, "fewer than 5 training samples")
    assert found["seven"].held_back == "the site has no training samples of it"
    assert (found["eight"].told, found["eight"].held_back) == ("about 10", "")
    assert found["zero"].samples == site.class_counts["zero"] > 20 and found["zero"].told in ("about 30", "about 40")


def test_warnings_name_what_is_thin_and_what_the_policy_lets_out(site: Site) -> None:
    warnings = make_statement(site, trial(site)).warnings
    assert any(re.match(r"eight \(\d\): few training samples", each) for each in warnings)
    assert not any("nine" in each for each in warnings)  # it does not leave
    (site.path / "policy.toml").write_text(places.ALL + "")
    lax = make_statement(Site(site.path), trial(site.path)).warnings
    assert lax[0].startswith("nine: one training sample is behind what leaves")
    for words in ("leaves exactly", "by the model before its training", "by class, and how certain", "differentially"):
        assert any(words in each for each in lax)


def test_means_by_a_map_that_everybody_has_are_warned_of(tmp_path: Path) -> None:
    for name, warned in (("fedloo", True), ("fedproto", False)):
        base = places.base(tmp_path / name / "base", f"method.name={name}", "shape=[64]")
        site = places.site(tmp_path / name / "site", base.invite("north"))
        found = make_statement(site, trial(site)).warnings
        assert any(each.startswith("fedloo sends means by a map that everybody has") for each in found) is warned


def test_a_policy_that_ends_soon_is_told(site: Site) -> None:
    (site.path / "policy.toml").write_text(f"expires = {dt.date.today() + dt.timedelta(days=3)}\n")
    assert any("from the next day on" in each for each in make_statement(Site(site.path), trial(site.path)).warnings)


@pytest.mark.parametrize("report", ["none", "accuracy", "full"])
def test_what_evaluation_replies_contain_is_said_as_it_is(site: Site, report: str) -> None:
    (site.path / "policy.toml").write_text(f'report = "{report}"\ncounts = "exact"\n')
    found = make_statement(Site(site.path), trial(site.path))
    names = {each.name.partition(".")[0] for each in found.trial.leaving if each.task == "evaluate"}
    expected = {"none": set(), "accuracy": {"rules", "totals"}, "full": {"rules", "tallies", "space"}}
    assert names == expected[report]
    assert {"none": "Nothing.", "accuracy": "Nothing by class", "full": "each class"}[report] in found.evaluation
    assert found.evaluations == (0 if report == "none" else 4)
    assert found.bytes_in_all == 4 * found.bytes_per_round


FROZEN = """
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())
    return body.requires_grad_(False)
"""
TWICE = "min_samples_per_class = 1\nprepared_alone = true\n"


@pytest.mark.parametrize(
    ("policy", "model", "words"),
    [
        (TWICE, FROZEN, "After all 4 rounds, epsilon 2.11."),
        (TWICE, places.MODEL, "noise, no guarantee: class vectors are means of features that train"),
        ("min_samples_per_class = 1\n", FROZEN, "noise, no guarantee: the site does not state that data() prepares"),
        ("prepared_alone = true\n", FROZEN, "noise, no guarantee: a site's policy holds back classes"),
    ],
    ids=["frozen", "trained", "unstated", "held back"],
)
def test_what_noise_guarantees_is_said_and_a_warning_where_it_is_nothing(
    tmp_path: Path, policy: str, model: str, words: str
) -> None:
    filters = [{"name": "noise", "noise": 2.0}]
    base = places.base(tmp_path / "base", "models.adapter=pool", filters=filters)
    site = places.site(tmp_path / "north", base.invite("north"), places.code(model, RARE), policy=policy)
    found = make_statement(site, trial(site))
    assert words in found.privacy
    assert any("no guarantee" in each for each in found.warnings) == ("epsilon" not in words)
    titles = {section.title: section for section in statement_document(found).sections}
    assert titles["Differential privacy"].sentences == [found.privacy]


@pytest.mark.parametrize(
    ("ending", "mixes"),
    [
        (")", False),
        (").load()", False),
        (", standardise=True)", True),
        (", standardise=True).load()", True),  # a data set, which no longer says how it was read
        (', missing="impute").load()', True),
    ],
)
def test_a_table_whose_rows_change_each_other_has_no_guarantee_whatever_the_policy_states(
    tmp_path: Path, ending: str, mixes: bool
) -> None:
    rows = "\n".join(f"{n % 7},{n % 5},{places.CLASSES[n % 2]}" for n in range(80))
    (tmp_path / "t.csv").write_text(f"a,b,label\n{rows}\n")
    base = places.base(tmp_path / "base", "models.adapter=pool", filters=["noise"])
    data = f"""
    from protea.data.sources.csv_table import Csv
    return Csv({str(tmp_path / "t.csv")!r}, label="label"{ending}
"""
    model = "\n    return nn.Sequential(nn.Linear(2, 16), nn.ReLU()).requires_grad_(False)\n"
    site = places.site(tmp_path / "site", base.invite("site"), places.code(model, data), policy=TWICE)
    found = trial(site).privacy
    assert found is not None and found.formal is not mixes
    assert ("records were prepared together" in found.why) is mixes


def test_an_audits_results_have_their_place(site: Site) -> None:
    shown = trial(site)
    unmade = statement_document(make_statement(site, shown)).sections[-1]
    assert unmade.title == "Audit" and "None was made" in unmade.sentences[0]
    finding = Finding("eight", "linkage", "AUC 0.71", "doubtful")
    assert not any("audit" in each for each in make_statement(site, shown, audit=[finding]).warnings)
    leaks = Finding("two", "inversion", "0.9", "leaks")
    found = make_statement(site, shown, audit=[finding, leaks])
    assert found.warnings[0] == "The audit found that it leaks: two (inversion).  See the audit below."
    assert found.leaking == ["two"]
    by_model = make_statement(site, shown, audit=[replace(leaks, needs_model=True)])
    assert by_model.warnings[0] == found.warnings[0] and by_model.leaking == []  # the model never leaves
    made = statement_document(make_statement(site, shown, audit=[finding])).sections[-1]
    assert made.table is not None and made.table.rows == [("eight", "linkage", "AUC 0.71", "doubtful")]


# As its user meets it


def test_the_page_is_printed_and_written(
    site: Site, typed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    page = tmp_path / "statement.html"
    done = typed("site", "check", "--dir", site.path, "--html", page)
    assert done.code == 0 and done.err == "", done.err
    assert max(map(len, done.out.replace(str(page), "").replace(str(site.path), "").splitlines())) <= 80
    order = [done.out.index(words) for words in ("Warnings: ", "What leaves", "What is held back", "What evaluation",
             "Differential", "Bytes", "What the coordinator", "The policy of this", "Audit", "Ready.")]  # fmt: skip
    assert order == sorted(order)
    assert "the safe defaults hold" in done.out and "nine          1   fewer than 5 training samples" in done.out
    text = page.read_text()
    assert "<script" not in text and "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'; style-src 'sha256-" in text and "For the ethics board" in text


def test_a_site_whose_class_of_one_sample_would_leave_is_not_called_ready(site: Site, typed: Command) -> None:
    (site.path / "policy.toml").write_text("min_samples_per_class = 1\n")
    done = typed("site", "check", "--dir", site.path)
    assert done.code == 0 and "Ready." not in done.out
    assert "Not ready: nine would leak; see the first warnings." in " ".join(done.out.split())


def test_what_the_policy_refuses_is_told_before_anything_is_trained(site: Site, typed: Command) -> None:
    (site.path / "policy.toml").write_text('\nmethods = ["fedtgp"]\n')
    done = typed("site", "check", "--dir", site.path)
    assert done.code == 2 and "Ready" not in done.out
    assert 'policy.toml, line 2: methods = ["fedtgp"]' in done.err and 'add "fedproto" to methods' in done.err


def test_a_page_that_cannot_be_written_is_told_before_the_work(site: Site, typed: Command, tmp_path: Path) -> None:
    done = typed("site", "check", "--dir", site.path, "--html", tmp_path / "none" / "x.html")
    assert done.code == 2 and "there is no folder" in done.err
    done = typed("site", "check", "--dir", site.path, "--html", tmp_path)
    assert done.code == 2 and "is a folder" in done.err and done.out == ""


def test_a_site_from_before_there_were_policies_can_have_one(site: Site, typed: Command) -> None:
    done = typed("site", "init", site.path)
    assert done.code == 0 and (site.path / "policy.toml").exists()
    assert "def model" in (site.path / "site.py").read_text() and "Fill in" not in done.out
    assert typed("site", "init", site.path).code == 2  # what is there is left as it is


class Names(HTMLParser):
    """Gathers the elements of a page, and the words in its cells."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.words = list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_no_name_becomes_markup() -> None:
    evil = '<script>alert("x")</script>$title'
    table = DocumentTable((evil,), [[evil]])
    page = Names()
    page.feed(document_page(Document(evil, [evil], [evil], [DocumentSection(evil, [evil], table)], [evil], [evil])))
    assert "script" not in page.tags and sum(evil in words for words in page.words) >= 8
