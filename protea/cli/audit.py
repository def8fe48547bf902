"""``protea audit``: what can be learned from what a client of a run sent, or from what a site would send."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from protea.cli.federation import say
from protea.core.errors import ConfigError
from protea.core.files import write_text
from protea.runs.reader import client_number

if TYPE_CHECKING:  # imported when the command is called
    from protea.network.site.statement import Finding
    from protea.studies.audit import AuditFinding, AuditResult, Subject, Thresholds

ROUNDS, SITE_ROUNDS = 8, 5  # of a run that are looked at; that a site trains
SHOWN = 12  # reasons on the screen
STYLES = {"leaks": "bold red", "watch": "yellow", "safe": "green"}
COLUMNS = ("counts", "linkage", "membership", "shadows", "inversion", "replies")
HEADS = {"counts": "told", "linkage": "rank", "membership": "AUC", "inversion": "likeness"}

Told = Callable[[str, int, int], None]
Changes = Annotated[
    list[str] | None,
    typer.Option("--thresholds", metavar="NAME=VALUE", help="A threshold of the verdicts; may be repeated."),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write everything that was found.", show_default=False)]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write a page.", show_default=False)]


def audit(
    path: Annotated[Path, typer.Argument(metavar="RUN|SITE", help="Run directory, or a site's.", show_default=False)],
    client: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|NAME",
            help="Of a run; the one with the smallest class if not given.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonFile = None,
    html: HtmlFile = None,
    thresholds: Changes = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="The last ones of a run (8), or that a site trains here (5).", show_default=False),
    ] = None,
    shadows: Annotated[int, typer.Option(min=0, help="Shadow models of the calibrated test; 0 for none.")] = 16,
    records: Annotated[bool, typer.Option(help="Show records in the page.")] = True,
) -> None:
    """Attack what was sent, or what a site would send, and say of each class whether it leaks.

    Nothing is sent, and the run or site stays as it is.
    """
    refuse_unwritable(json_file, "audit.json")
    refuse_unwritable(html, "audit.html")
    if json_file is not None and html is not None and json_file.absolute() == html.absolute():
        raise ConfigError(f"--json and --html are both {html}: the page would replace the numbers.  Name two files.")
    if shadows % 2:
        raise ConfigError(
            f"--shadows {shadows}: an even number is needed, as each record is in half of them; or 0 for none."
        )
    from protea.studies.audit import attack, thresholds_from

    limits = thresholds_from(thresholds or [])
    with telling() as told:
        if (path / "site.py").is_file():
            if client is not None:
                raise ConfigError("--client is for runs: a site is one client.")
            subject = subject_of_site(path, rounds or SITE_ROUNDS, told)
        else:
            from protea.studies.audit import subject_of_run

            number = None if client is None else client_number(path, client)
            subject = subject_of_run(path, number, rounds or ROUNDS, told)
        found = attack(subject, limits, shadows=shadows, told=told)
    show_audit(Console(), found)
    write_audit(Console(), found, json_file, html, records)


def refuse_unwritable(file: Path | None, example: str) -> None:
    """Refuse, before any work, a file that cannot be written; ``example`` is a name for it."""
    if file is not None and not file.absolute().parent.is_dir():
        raise ConfigError(f"{file} cannot be written: there is no folder {file.absolute().parent}.")
    if file is not None and file.is_dir():
        raise ConfigError(f"{file} is a folder.  Name a file in it, such as {file / example}.")


def subject_of_site(path: Path, rounds: int, told: Told) -> Subject:
    """Train some rounds at a site with nobody listening, and return what would leave."""
    from protea.config.experiment import method_label
    from protea.filters.secure_sum import secure_sum_of, without_secure_sum
    from protea.network.site.check import aggregate_alone
    from protea.network.site.directory import Site
    from protea.network.task import started_server
    from protea.studies.audit import Rehearsal

    site = Site(path)
    plan = site.plan()
    rehearsal = Rehearsal(
        f"site {site.name}",
        replace(plan, filters=without_secure_sum(plan.filters)),  # one site alone has no sum
        site.id,
        started_server(site.task, site.public()),
        partial(aggregate_alone, site),
        site.dataset,
        site.share,
        reports=site.report != "none",
        views=path / "views",
    )
    found = rehearsal.subject(min(rounds, site.task.rounds), told, method=method_label(site.task.method))
    if secure_sum_of(plan.filters) is None:
        return found
    return replace(found, plan=plan, departures=[replace(each, samples=0) for each in found.departures])


def audit_site(console: Console, path: Path, thresholds: Thresholds | None = None) -> AuditResult:
    """Audit a site before it sends anything, and show what was found."""
    from protea.studies.audit import attack

    with telling() as told:
        found = attack(subject_of_site(path, SITE_ROUNDS, told), thresholds, told=told)
    show_audit(console, found)
    return found


def stated(found: AuditResult) -> Iterator[Finding]:
    """Yield, for a site's statement, the most telling finding on each class and those on the site as a whole."""
    from protea.network.site.statement import Finding
    from protea.studies.audit import most_telling

    for name in found.classes:
        worst = most_telling(found.of_class(name))
        yield Finding(name, kind_of(worst), worst.words, worst.verdict, found.without_model[name] != worst.verdict)
    for each in found.findings:
        if not each.label:
            by_model = each.knowledge == "client's model"
            yield Finding("all classes", kind_of(each), in_words(each), each.verdict, by_model)


@contextmanager
def telling() -> Iterator[Told]:
    """Show how far an audit is, on a terminal; removed at the end."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("audit", total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def show_audit(console: Console, found: AuditResult) -> None:
    """Print what was attacked, a line for each class, and why classes are not safe."""
    subject = found.subject
    about = ", ".join(f"{name} {value}" for name, value in subject.settings.items())
    say(console, f"Audit of {subject.name} ({about}): {subject.members:,} records of {subject.classes} classes.")
    for note in found.notes:
        say(console, f"  {note}")
    console.print(class_table(found))
    for finding in found.reasons[:SHOWN]:
        say(console, f"  {finding.label} {finding.verdict}: {kind_of(finding)}.  {finding.words}")
    if len(found.reasons) > SHOWN:
        say(console, f"  ... and {len(found.reasons) - SHOWN} more classes; --html or --json have all.")
    for finding in found.findings:
        if not finding.label and finding.attack in ("shadows", "labels", "replies"):
            say(console, f"  All classes, {kind_of(finding)}: {in_words(finding)}  [{finding.verdict}]")
    say(console, summary(found))


def summary(found: AuditResult) -> str:
    """Say in one line how many classes leak, and to whom."""
    verdicts, less = list(found.classes.values()), list(found.without_model.values())
    tally = ", ".join(f"{verdicts.count(word)} {word}" for word in ("leaks", "watch", "safe"))
    only = verdicts.count("leaks") - less.count("leaks")
    who = f" ({only} of them only to one who has the client's trained model)" if only else ""
    tally = tally.replace(" leaks", f" leaks{who}")
    return f"Classes: {tally}.  Safe means that these attacks failed; it is no guarantee."


def class_table(found: AuditResult) -> Table:
    """Lay out, for each class, the worst number of each attack and the verdict."""
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), collapse_padding=True)
    table.add_column("class", overflow="fold", max_width=16)
    for name in ("n", *COLUMNS):
        table.add_column(HEADS.get(name, name), justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for name, verdict in found.classes.items():
        own = found.of_class(name)
        cells = [shown([finding for finding in own if finding.attack == attack]) for attack in COLUMNS]
        table.add_row(name, str(own[0].samples), *cells, f"[{STYLES[verdict]}]{verdict}[/]")
    return table


def shown(findings: list[AuditFinding]) -> str:
    """Return the number of the worst of some findings, in its colour."""
    if not findings:
        return "-"
    from protea.studies.audit import most_telling

    worst = most_telling(findings)
    if worst.number is None:
        return "-"
    whole = worst.attack in ("counts", "linkage", "replies")
    text = f"{worst.number:,.0f}" if whole else f"{worst.number:.2f}"
    return text if worst.verdict == "safe" else f"[{STYLES[worst.verdict]}]{text}[/]"


def kind_of(finding: AuditFinding) -> str:
    """Name an attack, and what the attacker must know for it beside what left."""
    needs = "" if finding.knowledge in ("uploads", "replies") else f" by one who has the {finding.knowledge}"
    return f"{finding.attack}{needs.replace('the own', 'an own')}"


def in_words(finding: AuditFinding) -> str:
    """Return a finding on the whole client as a sentence."""
    if finding.number is None or finding.low is None or finding.high is None:
        return finding.words
    return f"{finding.measure} {finding.number:.2f} ({finding.low:.2f} to {finding.high:.2f}).  {finding.words}"


def write_audit(console: Console, found: AuditResult, json_file: Path | None, html: Path | None, records: bool) -> None:
    """Write the files that were asked for."""
    if json_file is not None:
        write_text(json_file, json.dumps(found.plain(), indent=1, allow_nan=False) + "\n")
        say(console, f"Written: {json_file}")
    if html is not None:
        from protea.report.audit import audit_page
        from protea.studies.audit.pictures import pictures

        shown_there = pictures(found) if records else []
        write_text(html, audit_page(found.plain(), shown_there))
        hint = "  It shows records, and is as private as they are." if shown_there else ""
        say(console, f"Written: {html}{hint}")
