"""``protea audit`` as a user types it, the files that it writes, and its page."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console
from typed import DIGITS, Command

from protea.cli.audit import write_audit
from protea.report.audit import audit_page
from protea.studies.audit import attack, subject_of_run
from protea.studies.audit.attack import silent


@pytest.fixture(scope="module", autouse=True)
def hasty() -> Iterator[None]:
    """Inputs are reconstructed in few steps: nobody looks how well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("protea.studies.audit.inversion.STEPS", 5)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from protea import Run
    from protea.config.experiment import load_experiment

    folder = tmp_path_factory.mktemp("command")
    (folder / "exp.toml").write_text(DIGITS)
    Run(load_experiment(folder / "exp.toml", ["rounds=2"]), folder / "run").finish()
    return folder / "run"


@pytest.fixture(scope="module")
def files(run: Path) -> Path:
    """A folder with the two files that an audit writes."""
    found = attack(subject_of_run(run, 1, 8, silent), shadows=2)
    write_audit(Console(file=io.StringIO()), found, run.parent / "audit.json", run.parent / "audit.html", records=True)
    return run.parent


def test_the_command_says_what_is_attacked_and_a_verdict_on_each_class(
    run: Path, typed: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "80")
    page, plain = tmp_path / "audit.html", tmp_path / "audit.json"
    said = typed("audit", run, "--client", "1", "--shadows", "2", "--json", plain, "--html", page)
    assert said.code == 0 and "Audit of client 1 (method fedproto, model tiny_mlp)" in said.out
    assert "bit by bit" in said.out and "it is no guarantee" in said.out and "as private as they are" in said.out
    table = [line for line in said.lines if re.match(r" \d  ", line)]
    found = json.loads(plain.read_text())
    assert len(table) == len(found["classes"]) and max(map(len, table)) <= 80
    for line, each in zip(table, found["classes"], strict=True):
        assert line.split()[0] == each["class"] and line.split()[-1] == each["verdict"]


def test_the_file_has_every_number(files: Path):
    found = json.loads((files / "audit.json").read_text())
    assert found["format"] == "protea-audit-1" and found["subject"] == "client 1" and found["rounds"] == [1, 2]
    assert found["verdict"] in ("safe", "watch", "leaks") and found["thresholds"]["samples"] == 5
    row = {"label", "samples", "attack", "knowledge", "measure", "number", "low", "high", "verdict", "words"}
    assert found["findings"] and all(each.keys() == row for each in found["findings"])
    for each in found["classes"]:
        for kind, place in each["worst"].items():
            finding = found["findings"][place]
            assert (finding["label"], finding["attack"]) == (each["class"], kind)
    assert "png" not in json.dumps(found)  # records are in the page alone


class Pictures(HTMLParser):
    """Every image of a page, and whether anything in it could run or be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[bytes] = []
        self.tags: set[str] = set()
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        if tag == "img":
            self.images.append(base64.b64decode((given["src"] or "").removeprefix("data:image/png;base64,")))
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        assert "style" not in given and not any(name.startswith("on") for name in given)


def test_the_page_shows_records_beside_what_was_made_of_the_vectors_and_runs_nothing(files: Path):
    text = (files / "audit.html").read_text()
    page = Pictures()
    page.feed(text)
    sizes = {Image.open(io.BytesIO(each)).size for each in page.images}
    assert sizes == {(8, 8)} and len(page.images) >= 3
    assert "script" not in page.tags and "http:" not in text and "https:" not in text
    style = text[text.index("<style>") + 7 : text.index("</style>")]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in page.policy and "default-src 'none'" in page.policy
    assert "do not pass it on" in text


def test_a_page_without_records_has_no_picture(run: Path, typed: Command, tmp_path: Path):
    said = typed("audit", run, "--client", "1", "--shadows", "0", "--html", tmp_path / "a.html", "--no-records")
    assert said.code == 0 and "<img" not in (tmp_path / "a.html").read_text() and "private" not in said.out


def test_names_in_a_page_are_text_whatever_they_hold(files: Path):
    found = json.loads((files / "audit.json").read_text())
    name = found["classes"][0]["class"]
    bad = json.loads(json.dumps(found).replace(f'"{name}"', json.dumps("<script>alert(1)</script>")))
    assert "<script" not in audit_page({**bad, "subject": "<b>x</b>"}) and "<b>x" not in audit_page(bad)


def test_what_cannot_work_is_refused_before_any_work(run: Path, typed: Command, tmp_path: Path):
    for words, message in {
        ("--client", "7"): "There is no client 7",
        ("--json", str(tmp_path / "no" / "a.json")): "there is no folder",
        ("--html", str(tmp_path)): "audit.html.",
        ("--json", str(tmp_path)): "audit.json.",
        ("--thresholds", "auc=1"): "auc is not a setting",
        ("--thresholds", "auc_watch"): "--thresholds auc_watch: write name=value",
        ("--thresholds", "auc_watch=0.9"): "auc_watch is 0.9, and auc_leaks 0.8",
        ("--shadows", "3"): "an even number is needed",
        ("--json", str(tmp_path / "a"), "--html", str(tmp_path / "a")): "Name two files",
    }.items():
        said = typed("audit", run, *words)
        assert said.code == 2 and message in said.err, said
    said = typed("audit", tmp_path, "--client", "0")
    assert said.code == 2 and "is not a run directory" in said.err, said
