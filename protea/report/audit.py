"""The page of an audit: verdicts first, then why, pictures, and every number.  It runs no script at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from string import Template
from typing import Any

from protea.report.page import digest, text

Plain = Mapping[str, Any]  # what an audit writes as JSON

ORDER = ("safe", "watch", "leaks")
COLUMNS = {
    "counts": "samples told",
    "linkage": "rank of a record",
    "membership": "membership, AUC",
    "shadows": "with shadows, AUC",
    "inversion": "likeness",
    "replies": "smallest reply",
}
MEANING = {
    "counts": "how many samples the upload says are behind the vector.",
    "linkage": "which place, by distance to the vector, the nearest record behind it has among all candidates.",
    "membership": "the chance that a record behind the vector is nearer to it than another of the class; 0.5 is none.",
    "shadows": "the same, calibrated by shadow models that were trained with and without each record.",
    "inversion": "correlation of an input made from the vector with a record behind it, both less their class's mean.",
    "replies": "test or validation samples behind the accuracy of the class that evaluation replies tell.",
}
NOT_PROVEN = (
    "Safe means that these attacks, with this knowledge and these few shadow models, failed.  Better attacks exist or "
    "will be found.  Only differential privacy with a stated epsilon bounds all of them.  Attacks on several clients "
    "together, on weights, and by a coordinator that sends what it should not, are not tried here."
)


def audit_page(found: Plain, pictures: Sequence[Plain] = ()) -> str:
    """Return the page of what an audit found; ``pictures`` show records, so the page is as private as they are."""
    style = text("page.css") + text("audit.css")
    sections = {
        "Verdict": verdicts(found, bool(pictures)),
        "Why": reasons(found),
        "What was attacked": attacked(found),
        "Inputs made from vectors": shown(pictures),
        "Whole client": rows(
            [each for each in found["findings"] if not each["label"]], "What concerns no single class"
        ),
        "All findings": f"<details><summary>{len(found['findings'])} findings</summary>"
        f"{rows(found['findings'], 'Every attack on every class')}</details>",
        "What this does not prove": f"<p>{escape(NOT_PROVEN)}</p>",
    }
    there = {name: body for name, body in sections.items() if body}
    return Template(text("audit.html")).substitute(
        style=style,
        style_hash=digest(style),
        subject=escape(str(found["subject"])),
        about=escape(", ".join(f"{name}: {found[name]}" for name in ("method", "model") if name in found)),
        contents="".join(f'<li><a href="#{anchor(name)}">{name}</a></li>' for name in there),
        body="".join(f'<section id="{anchor(name)}"><h2>{name}</h2>{body}</section>' for name, body in there.items()),
    )  # fmt: skip


def anchor(name: str) -> str:
    """Return the name by which a section is linked."""
    return name.lower().replace(" ", "-")


def chip(verdict: str) -> str:
    """Return a verdict as a word with a colour behind it."""
    return f'<span class="verdict {verdict}">{verdict}</span>'


def verdicts(found: Plain, private: bool) -> str:
    """Return the numbers at a glance, and the table of classes."""
    tally = {word: sum(each["verdict"] == word for each in found["classes"]) for word in reversed(ORDER)}
    tiles = [(chip(found["verdict"]), "worst of all findings")]
    tiles += [(str(count), f"{'class' if count == 1 else 'classes'}: {word}") for word, count in tally.items()]
    tiles += [
        (f"{found['records']:,}", "records behind the vectors"),
        (f"{found['upload_bytes']:,}", "bytes an upload"),
    ]
    warning = "This page shows records.  It is as private as they are: do not pass it on."
    notice = f'<p class="notice">{warning}</p>' if private else ""
    tops = "".join(f"<li><b>{number}</b><span>{escape(words)}</span></li>" for number, words in tiles)
    return f'{notice}<ul class="tiles">{tops}</ul>{classes(found)}'


def classes(found: Plain) -> str:
    """Return the table with a row for each class: of each attack the worst number."""
    head = "".join(f'<th scope="col" class="n">{escape(words)}</th>' for words in COLUMNS.values())
    body = ""
    for each in found["classes"]:
        cells = "".join(cell(found, each, attack) for attack in COLUMNS)
        body += (
            f'<tr><th scope="row">{escape(each["class"])}</th><td>{chip(each["verdict"])}</td>'
            f"<td>{each['without_model']}</td>"
            f'<td class="n">{each["samples"]}</td>{cells}</tr>'
        )
    meaning = "<li><b>without its model</b>: the verdict if nobody but the client has its trained model.</li>"
    meaning += "".join(f"<li><b>{escape(COLUMNS[name])}</b>: {escape(words)}</li>" for name, words in MEANING.items())
    first = "".join(f'<th scope="col">{words}</th>' for words in ("class", "verdict", "without its model"))
    return (
        f'<div class="table"><table class="classes"><caption>Each class: of each attack the worst number over all '
        f'attackers</caption><thead><tr>{first}<th scope="col" class="n">samples</th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f'<details><summary>What the columns say</summary><ul class="note">{meaning}</ul></details>'
    )


def cell(found: Plain, each: Plain, attack: str) -> str:
    """Return a cell with the worst finding of one attack on one class."""
    if attack not in each["worst"]:
        return '<td class="n safe">-</td>'
    worst = found["findings"][each["worst"][attack]]
    return f'<td class="n {worst["verdict"]}">{number(worst)}</td>'


def number(finding: Plain) -> str:
    """Return a number as it is shown; a dash where there is none."""
    value = finding["number"]
    if value is None:
        return "-"
    return (
        f"{value:,.0f}"
        if float(value).is_integer() and finding["measure"] not in ("AUC", "likeness")
        else f"{value:.2f}"
    )


def interval(finding: Plain) -> str:
    """Return the interval of a number, if it has one."""
    return "" if finding["low"] is None else f"{finding['low']:.2f} to {finding['high']:.2f}"


def reasons(found: Plain) -> str:
    """Return for each class that is not safe its worst finding of each attack that came to something."""
    body = ""
    for each in found["classes"]:
        worst = [found["findings"][place] for place in each["worst"].values()]
        lines = "".join(reason(finding) for finding in worst if finding["verdict"] != "safe")
        if lines:
            count = f"{each['samples']} sample{'' if each['samples'] == 1 else 's'}"
            body += f"<h3>{escape(each['class'])}, {count} {chip(each['verdict'])}</h3><ul>{lines}</ul>"
    return f'<div class="why">{body}</div>' if body else "<p>No attack on any class came to anything.</p>"


def reason(finding: Plain) -> str:
    """Return a finding as an item of a list."""
    value = f"{finding['measure']} {number(finding)}" + (f" ({interval(finding)})" if interval(finding) else "")
    value = "" if finding["number"] is None or finding["attack"] in ("counts", "replies") else f" {value}."
    who = "" if finding["attack"] in ("counts", "replies") else f", attacker knows: {finding['knowledge']}"
    return (
        f"<li>{finding['verdict']}: <b>{finding['attack']}</b>{escape(who)}.{escape(value)} "
        f"{escape(finding['words'])}</li>"
    )


def attacked(found: Plain) -> str:
    """Return what was attacked, and what each attacker knows."""
    notes = "".join(f"<p>{escape(note)}</p>" for note in found["notes"])
    used = {finding["knowledge"] for finding in found["findings"]}
    known = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(words)}</td></tr>'
        for name, words in found["knowledge"].items()
        if name in used
    )
    over = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(", ".join(map(str, rounds)))}</td></tr>'
        for name, rounds in found["presence"].items()
    )
    limits = "".join(f"<div><dt>{name}</dt><dd>{value:g}</dd></div>" for name, value in found["thresholds"].items())
    return (
        f'{notes}<div class="table"><table><caption>What each attacker knows</caption><tbody>{known}</tbody></table>'
        f"</div><details><summary>Which classes were present, by round</summary>"
        f'<div class="table"><table><tbody>{over}</tbody></table></div></details>'
        f'<details><summary>Thresholds of the verdicts</summary><dl class="pairs">{limits}</dl></details>'
    )


def shown(pictures: Sequence[Plain]) -> str:
    """Return the inputs that were made from vectors beside the records, one figure for each class."""
    figures = ""
    for each in pictures:
        items = "".join(
            f'<li><img src="data:image/png;base64,{escape(one["png"])}" alt="{escape(one["caption"])}">'
            f"{escape(one['caption'])}</li>"
            for one in each.get("images", ())
        )
        texts = "".join(f"<blockquote>{escape(words)}</blockquote>" for words in each.get("texts", ()))
        figures += (
            f"<figure><figcaption><h3>{escape(each['label'])}</h3></figcaption>"
            f"{f'<ul>{items}</ul>' if items else ''}{texts}</figure>"
        )
    return f'<div class="pictures">{figures}</div>' if figures else ""


def rows(findings: Sequence[Plain], caption: str) -> str:
    """Return a table with a row for each finding."""
    body = "".join(
        f'<tr><th scope="row">{escape(each["label"] or "all")}</th><td>{each["attack"]}</td>'
        f'<td>{escape(each["knowledge"])}</td><td>{escape(each["measure"])}</td><td class="n">{number(each)}</td>'
        f'<td class="n">{interval(each)}</td><td>{chip(each["verdict"])}</td><td>{escape(each["words"])}</td></tr>'
        for each in findings
    )  # fmt: skip
    names = ("class", "attack", "attacker knows", "measure", "number", "95 % interval", "verdict", "in words")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        f'<div class="table"><table class="classes"><caption>{caption}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
