"""The site of the docs: every page is reached, every link within it leads somewhere, and what it quotes is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from wanted import extra

import protea

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
OUTSIDE = [ROOT / name for name in ("README.md", "README.zh-CN.md", "CHANGELOG.md", "CONTRIBUTING.md")]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    """A page without its blocks of code, and without code in its lines, in which brackets are no links."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2 *$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]+`", lambda code: code[0] if "](" not in code[0] else "", text)


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts and MyST make them; also of pages that it includes."""
    text = page.read_text(encoding="utf-8")
    found: set[str] = set()
    for included in re.findall(r"^```\{include\} (\S+)", text, re.MULTILINE):
        found |= anchors((page.parent / included).resolve())
    for heading in re.findall(r"^#{1,4} +(.+?) *#*$", prose(page), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return found


def broken(page: Path) -> list[str]:
    """The links of a page that lead to no file, or to no heading of one."""
    found = []
    for link in LINK.findall(prose(page)):
        target, _, anchor = link.partition("#")
        there = page if not target else (page.parent / target).resolve()
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", [*PAGES, *OUTSIDE], ids=name)
def test_links_lead_to_files_and_headings_that_are_there(page: Path):
    assert broken(page) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path):
    """Otherwise the test above would say nothing."""
    (tmp_path / "other.md").write_text("# Some words, here\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#some-words-here) [b](other.md#elsewhere) [c](gone.md) [d](#page)\n\n# Page\n")
    assert broken(page) == ["other.md#elsewhere", "gone.md"]


def in_toctrees() -> set[Path]:
    found = set()
    for page in PAGES:
        for tree in re.findall(
            r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        ):
            for entry in tree.splitlines():
                if entry.strip() and not entry.startswith(":"):
                    found |= set(page.parent.glob(f"{entry.strip()}.md"))
    return found


def test_every_page_is_in_the_table_of_contents():
    assert {name(page) for page in PAGES} - {name(page) for page in in_toctrees()} == {"docs/index.md"}


def test_the_reference_has_every_public_name():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    modules = {"geometry": "protea.core.geometry", "losses": "protea.core.losses"}
    documented = set(re.findall(r"\.\. (?:auto\w+|py:data):: (\S+)", pages))
    assert {modules.get(each, f"protea.{each}") for each in protea.__all__} <= documented


def test_every_message_in_troubleshooting_is_one_of_the_code():
    """Word for word; three dots stand for what differs."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "protea").rglob("*.py")))
    source = re.sub(r"\"\s*\n\s*(?:\+ )?f?\"", "", source).replace("\\n", " ")
    known = re.sub(r"\s+", " ", re.sub(r"\{[^{}]*\}", "...", source))
    quoted = re.findall(r"^> `(.+?)`$", (DOCS / "faq.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert len(quoted) >= 15
    for message in quoted:
        words = re.sub(r"\s+", " ", message.replace("\n> ", " "))
        missing = [part for part in words.split("...") if part.strip(" .,:") and part.strip(" .,:") not in known]
        assert not missing, message


def commands(page: Path) -> list[str]:
    """The commands of a page's blocks, without the remarks after them."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]


def test_the_chinese_readme_has_the_methods_and_commands_of_the_english_one():
    english, chinese = ROOT / "README.md", ROOT / "README.zh-CN.md"
    assert commands(chinese) == commands(english) != []
    rows = [re.findall(r"^\| \[`\w+`\]\(\S+\)", page.read_text("utf-8"), re.MULTILINE) for page in (english, chinese)]
    assert rows[0] == rows[1] != []


def test_all_that_say_a_version_say_the_same():
    places = [ROOT / "CITATION.cff", ROOT / "pyproject.toml", DOCS / "citing.md"]
    found = [
        re.findall(r"^ *version *[:=] *[\"{]?([\d.]+)", place.read_text("utf-8"), re.MULTILINE) for place in places
    ]
    assert found == [[protea.__version__]] * 3


@pytest.mark.parametrize("page", ["notebook.md", "trained-model.md"])
def test_every_block_of_python_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From top to bottom, as its reader types them."""
    if page == "notebook.md":
        extra("pandas")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 6
    known: dict[str, Any] = {"__name__": "__main__"}
    for number, block in enumerate(blocks):
        if "class Net" in block:  # a module of its own stands for the notebook
            (tmp_path / "cell.py").write_text(block.partition("\n\n\nmine")[0])
            monkeypatch.syspath_prepend(tmp_path)
            block = block.replace("__main__:Net", "cell:Net")
        exec(compile(block, f"{page}, block {number}", "exec"), known)


@pytest.mark.nightly
def test_the_tutorial_runs_from_top_to_bottom(tmp_path: Path):
    """Files are written as it shows them; its commands run one after another."""
    shell = 'set -e\nprotea() { "$PYTHON" -m protea "$@"; }\npython() { "$PYTHON" "$@"; }\n'
    for kind, block in re.findall(r"```(\w+)\n(.*?)```", (DOCS / "tutorial.md").read_text("utf-8"), re.DOTALL):
        if kind in ("toml", "python"):
            (tmp_path / block.split()[1]).write_text(block, encoding="utf-8")
        elif kind == "sh":
            for line in block.splitlines():
                where = str(ROOT)
                inline = " engine.name=inline" if re.search(r"protea (run|sweep|show) ", line) else ""
                words = shell + line + inline
                environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": where}
                done = subprocess.run(
                    ["bash", "-c", words], cwd=tmp_path, env=environment, capture_output=True, text=True
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "three.html").is_file()


@pytest.mark.nightly
def test_the_site_is_built_without_a_warning(tmp_path: Path):
    """Links to other hosts are not tried."""
    extra("docs")
    words = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(DOCS),
        str(tmp_path / "site"),
    ]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "site/index.html").is_file()
