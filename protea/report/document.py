"""A statement as one HTML page to print and sign: it works offline, runs no script and asks no network for anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from string import Template

from protea.report.page import digest, text


@dataclass(frozen=True)
class DocumentTable:
    """A table of texts.  Columns named in ``numbers`` are set to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()


@dataclass(frozen=True)
class DocumentSection:
    """A heading with sentences and a table below it."""

    title: str
    sentences: Sequence[str] = ()
    table: DocumentTable | None = None


@dataclass(frozen=True)
class Document:
    """A page: title, what it is about, warnings, sections, what is signed for, and an annex for those who ask more."""

    title: str
    about: Sequence[str]
    warnings: Sequence[str]
    sections: Sequence[DocumentSection]
    signed: Sequence[str] = ()  # sentences above the lines for names
    signers: Sequence[str] = ()  # one line to sign for each
    annex: Sequence[DocumentSection] = ()  # on a page of its own


def document_page(document: Document) -> str:
    """Give the page.  Its security policy lets nothing run and nothing be fetched."""
    style = text("page.css") + text("document.css")
    return Template(text("document.html")).substitute(
        title=escape(document.title),
        style=style,
        style_hash=digest(style),
        about=_paragraphs(document.about),
        warnings=_warnings(document.warnings),
        sections="\n".join(map(_section, document.sections)),
        signed=_signed(document),
        annex="\n".join(map(_section, document.annex)),
    )


def _paragraphs(sentences: Sequence[str]) -> str:
    return "\n".join(f"<p>{escape(each)}</p>" for each in sentences)


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    items = "\n".join(f'<li class="notice">{escape(each)}</li>' for each in warnings)
    return f'<section><h2 id="warnings">Warnings</h2>\n<ol class="warnings">{items}</ol></section>'


def _section(section: DocumentSection) -> str:
    inner = f"{_paragraphs(section.sentences)}\n{_table(section.table)}"
    return f"<section><h2>{escape(section.title)}</h2>\n{inner}</section>"


def _table(table: DocumentTable | None) -> str:
    if table is None or not table.rows:
        return ""
    kinds = [' class="n"' if column in table.numbers else "" for column in table.columns]
    head = "".join(f'<th scope="col"{kind}>{escape(c)}</th>' for c, kind in zip(table.columns, kinds, strict=True))
    body = "\n".join(
        f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for cell, kind in zip(row, kinds, strict=True))}</tr>"
        for row in table.rows
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _signed(document: Document) -> str:
    if not document.signers:
        return ""
    lines = "\n".join(
        f'<div class="sign"><span>{escape(who)}: name</span><span>date</span><span>signature</span></div>'
        for who in document.signers
    )
    return f'<section class="signatures"><h2>Signatures</h2>\n{_paragraphs(document.signed)}\n{lines}</section>'
