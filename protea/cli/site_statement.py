"""The statement of ``protea site check``, as a document for the terminal and for a page to sign."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from protea.network.site.statement import Statement, size_words
from protea.report.document import Document, DocumentSection, DocumentTable


def statement_document(found: Statement) -> Document:
    """Arrange a statement: warnings first, then what leaves, what does not, and who decides."""
    trial = found.trial
    return Document(
        title=f"What leaves the site {trial.site}",
        about=[
            f"Site {trial.site}, client {trial.id}, of the task {trial.task}.",
            f"Coordinator: {found.coordinator}.  Date: {found.today}.",
            f"Model {trial.model}: {trial.parameters:,} parameters, which stay here.",
            f"Data: {trial.train} samples to train on, {trial.validation} to validate, {trial.test} to test; they stay "
            f"here.",
        ],
        warnings=found.warnings,
        sections=[
            _leaving(found),
            _held_back(found),
            DocumentSection("What evaluation replies contain", [found.evaluation]),
            DocumentSection("Differential privacy", [found.privacy]),
            DocumentSection("Bytes", [size_words(found)]),
            DocumentSection(
                "What the coordinator may ask",
                table=DocumentTable(("asked", "of this site"), found.asked),
            ),
            _policy(found),
            _audit(found),
        ],
        signed=[
            "I have read this page, and agree that what is listed above leaves this site under the policy above, and "
            "nothing else."
        ],
        signers=["For the site", "For the ethics board"],
        annex=[_tensors(found)],
    )


def _leaving(found: Statement) -> DocumentSection:
    rows = [(each.name, str(each.samples), each.told) for each in found.classes if not each.held_back]
    if not rows:
        return DocumentSection(
            "What leaves", ["This method sends no prototypes; what it sends instead is in the annex."]
        )
    classes = ", ".join(name for name, _, _ in rows)
    least = found.trial.summed
    masked = [
        f"All of this leaves under a mask: a coordinator that keeps to the protocol can read the sum over all sites "
        f"of a round, at least {least}, and no site's part in it.  The numbers here are what is behind the mask."
    ]
    return DocumentSection(
        "What leaves, in each round",
        [
            "One vector of numbers for each class below, made of the features of all its training samples here.",
            f"Classes whose prototypes leave: {classes}.",
            f"With it go: {found.trial.beside}.",
            *(masked if least else []),
        ],
        DocumentTable(("class", "samples behind it", "told"), rows, ("samples behind it",)),
    )


def _held_back(found: Statement) -> DocumentSection:
    rows = [(each.name, str(each.samples), each.held_back) for each in found.classes if each.held_back]
    return DocumentSection(
        "What is held back",
        ["Samples, features and answers of single samples, and the model, but for what the method sends."],
        DocumentTable(("class", "samples", "why it does not leave"), rows, ("samples",)),
    )


def _tensors(found: Statement) -> DocumentSection:
    rows = [
        (each.task, each.name, each.shape, each.dtype, f"{each.bytes:,}", each.norms) for each in found.trial.leaving
    ]
    return DocumentSection(
        "Annex: every tensor of the messages of a round",
        ["As they were made in one round of training here, with the lengths of their rows."],
        DocumentTable(("message", "tensor", "shape", "type", "bytes", "norms of rows"), rows, ("bytes",)),
    )


def _policy(found: Statement) -> DocumentSection:
    return DocumentSection(
        "The policy of this site",
        [
            f"In {found.policy_file}.  What it forbids is refused, whatever the task says.",
            f"Numbers of samples are told {found.counts}.",
        ],
        DocumentTable(("it says", "where"), found.policy),
    )


def _audit(found: Statement) -> DocumentSection:
    if found.audit is None:
        return DocumentSection("Audit", ["None was made: nobody has tried to learn something from what would leave."])
    rows = [(each.subject, each.attack, each.result, each.verdict) for each in found.audit]
    return DocumentSection(
        "Audit",
        ["Attacks were tried at this site on what would leave."],
        DocumentTable(("on", "attack", "result", "verdict"), rows),
    )


def print_statement(console: Console, document: Document) -> None:
    """Print a document, warnings first."""
    for sentence in document.about:
        wrapped(console, sentence)
    if document.warnings:
        console.print(f"\nWarnings: {len(document.warnings)}", style="bold", highlight=False)
        for number, warning in enumerate(document.warnings, 1):
            wrapped(console, f"{number}. {warning}")
    for section in [*document.sections, *document.annex]:
        console.print(f"\n{section.title}", style="bold", highlight=False)
        for sentence in section.sentences:
            wrapped(console, sentence)
        if section.table is not None and section.table.rows:
            console.print(_printed(section.table))
    wrapped(console, "One round was trained here; nothing was sent.")


def wrapped(console: Console, text: str) -> None:
    """Print plain text, wrapped between words."""
    console.print(text, highlight=False, markup=False)


def _printed(table: DocumentTable) -> Table:
    printed = Table(box=SIMPLE, pad_edge=False)
    for column in table.columns:
        printed.add_column(column, justify="right" if column in table.numbers else "left", overflow="fold")
    for row in table.rows:
        printed.add_row(*map(escape, row))
    return printed
