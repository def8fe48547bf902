"""``protea site``: take part in a federation over a network."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from protea.cli.audit import audit_site, refuse_unwritable, stated
from protea.cli.export_model import ExportedRule, Onnx, write_and_show
from protea.cli.federation import say
from protea.cli.predict import Out, Resize, SamplesPath, progress, refuse_out, show_predictions
from protea.cli.site_files import CODE, SETTINGS, new_policy
from protea.config.units import format_bytes
from protea.config.words import RULES
from protea.core.errors import ConfigError
from protea.core.files import hold_lock, make_folder, unused_path, write_bytes, write_text
from protea.core.shell import quoted

app = typer.Typer(help="Take part in a federation over a network.", no_args_is_help=True, add_completion=False)

BundleFile = Annotated[
    Path | None, typer.Argument(metavar="[BUNDLE]", help="What the coordinator sent.", show_default=False)
]
Directory = Annotated[Path, typer.Option("--dir", help="The site's directory.")]
WithAudit = Annotated[bool, typer.Option("--audit", help="Also attack what would leave, and say what leaks.")]
SiteRule = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="How to answer: " + ", ".join(RULES) + ".  As the site was evaluated, or head.",
        show_default=False,
    ),
]


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="A directory, new or empty.")] = Path(),
    bundle: Annotated[Path | None, typer.Option(help="What the coordinator sent.", show_default=False)] = None,
) -> None:
    """Write a site.py to fill in, a site.toml, and a policy.toml that says what may leave."""
    files = {"site.py": CODE, "site.toml": SETTINGS, "policy.toml": new_policy(dt.date.today())}
    if all((directory / name).exists() for name in ("site.py", "site.toml")):
        files = {"policy.toml": files["policy.toml"]}  # a site from before there were policies
    for name in files:
        if (directory / name).exists():
            raise ConfigError(f"{directory / name} exists already; it is left as it is.")
    make_folder(directory)
    for name, text in files.items():
        write_text(directory / name, text)
    if bundle is not None:
        open_bundle(directory, bundle)
    console, where = Console(), "" if directory == Path() else f" --dir {quoted(directory)}"
    if "site.py" in files:
        say(console, f"Fill in model() and data() in {directory / 'site.py'}.")
    say(console, f"Read {directory / 'policy.toml'}: it says what may leave this site, and holds against every task.")
    say(console, f"Then see what would leave: protea site check BUNDLE{where}")


@app.command()
def request(
    name: Annotated[str, typer.Argument(help="The site's name in the federation.", show_default=False)],
    directory: Directory = Path(),
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Ask to change to a new key, which takes effect with the new bundle.")
    ] = False,
) -> None:
    """Make this site's own key, and write a request for the coordinator.  The private key never leaves."""
    from protea.network.trust.keys import public_of_site
    from protea.network.trust.requests import KEY, read_request, write_request
    from protea.network.trust.signatures import fingerprint

    own, given = directory / KEY, directory / "bundle" / KEY
    if not rotate and given.exists():
        raise ConfigError(
            f"{directory} has a key that the coordinator made.  Change it to one of its own: "
            f"protea site request {name} --rotate"
        )
    former = own if own.exists() else given if given.exists() else None
    path, console = write_request(directory, name, former, rotate=rotate), Console()
    say(console, f"Request: {path}.  It may be sent as it is: it has no secret.")
    say(console, f"Its key, to be read to the coordinator: {fingerprint(read_request(path).key.encode())}")
    if rotate and former is not None:
        now = fingerprint(public_of_site(former.read_bytes()))
        say(console, f"The key before, which holds until the new bundle is here: {now}")
    say(console, f"There: protea federation invite DIRECTORY --request {path.name}")


@app.command()
def check(
    bundle: BundleFile = None,
    directory: Directory = Path(),
    html: Annotated[
        Path | None, typer.Option(help="Write it as a page to print and sign, too.", show_default=False)
    ] = None,
    audit: WithAudit = False,
) -> None:
    """Train one round here, and state what would leave this site, in plain words.  Nothing is sent."""
    from protea.cli.site_statement import print_statement, statement_document
    from protea.network.site.check import trial
    from protea.network.site.directory import Site
    from protea.network.site.refusals import listed
    from protea.network.site.statement import make_statement
    from protea.report.document import document_page

    refuse_unwritable(html, "site.html")
    if bundle is not None:
        open_bundle(directory, bundle)
    site, console = Site(directory), Console()
    attacked = audit_site(console, directory) if audit else None
    found = make_statement(site, trial(site), None if attacked is None else list(stated(attacked)))
    document = statement_document(found)
    print_statement(console, document)
    if html is not None:
        write_text(html, document_page(document))
        say(console, f"Written: {html}, a page to print and sign.")
    join = "protea site join" + ("" if directory == Path() else f" --dir {quoted(directory)}")
    if found.leaking:
        say(
            console, f"Not ready: {listed(found.leaking)} would leak; see the first warnings.  It works, though: {join}"
        )
    else:
        say(console, f"Ready.  Take part: {join}")


@app.command()
def join(bundle: BundleFile = None, directory: Directory = Path()) -> None:
    """Take part.  Only connections to the outside are made; every message sent is noted in audit.jsonl."""
    from protea.network.site.join import join as join_

    if bundle is not None:
        open_bundle(directory, bundle)
    console = Console()
    try:
        join_(directory, lambda text: say(console, text))
    except KeyboardInterrupt:
        say(Console(stderr=True), "Stopped.  Come back with the same command.")
        raise SystemExit(130) from None


@app.command()
def export(
    file: Annotated[
        Path | None, typer.Argument(help="A new .safetensors file, for the weights alone.", show_default=False)
    ] = None,
    directory: Directory = Path(),
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIR", help="A new folder for the whole model; DIR.zip too.", show_default=False),
    ] = None,
    rule: ExportedRule = None,
    onnx: Onnx = False,
) -> None:
    """Write this site's model, as it is after its last round: a folder that answers raw samples, or weights alone."""
    if (file is None) == (to is None):
        raise ConfigError(
            "Say where to: --to DIR for a folder that can be used, or FILE.safetensors for weights alone."
        )
    if onnx and to is None:
        raise ConfigError("--onnx is for a folder: give --to DIR.")
    if to is not None:
        from protea.network.site.export import contents_of_site
        from protea.runs.model_folder.folder import refuse_taken

        refuse_taken(to)
        write_and_show(contents_of_site(directory, rule, onnx=onnx), to)
    if file is not None:
        export_weights(directory, file)


def export_weights(directory: Path, file: Path) -> None:
    """Write the weights of a site's model, and nothing else."""
    from protea.network.site.directory import Site

    if file.exists():
        raise ConfigError(f"{file} exists already.  Choose another name.")
    from safetensors.torch import save

    weights = Site(directory).trained().state_dict()
    try:
        write_bytes(file, save({name: tensor.cpu().contiguous().clone() for name, tensor in weights.items()}))
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}.  Choose another name.") from error
    say(Console(), f"Written: {file}, {len(weights)} tensors, {format_bytes(file.stat().st_size)}")


@app.command()
def predict(
    data: SamplesPath, directory: Directory = Path(), out: Out = "-", rule: SiteRule = None, resize: Resize = False
) -> None:
    """Predict the classes of new samples by this site's own trained model.  Nothing leaves this machine.

    The answer is by the rule that the site was evaluated by, or by the classifier (head) where that needs what the
    coordinator last sent, and the site was not evaluated after its last round.  A protected site answers by what is
    best on its held-out samples.  Samples are scaled as site.toml says.
    """
    from protea.data.new_samples import read_new_samples
    from protea.network.site.predict import note_on_rule, note_on_scale, scaled, trained_client, usual_rule
    from protea.runs.predictions import form_of, predict_samples

    refuse_out(out, data)
    site, trained = trained_client(directory)
    rule = rule or usual_rule(site, trained)
    note = note_on_rule(site, trained, rule)
    names = site.task.classes
    form = form_of(trained, names, resize=resize, fill=site.filling)
    samples = scaled(site, read_new_samples(data, site.source(), form))
    with progress(len(samples)) as told:
        found = predict_samples(trained, samples, names, rule, told)
    where = f"Site {site.name} ({trained.model.name}) after round {trained.client.round}"
    show_predictions(found, out, where, rule, note)
    if warning := note_on_scale(site, samples):
        say(Console(stderr=True), warning)


def open_bundle(directory: Path, bundle: Path) -> None:
    """Unpack a bundle into the site's directory; refuse one of another site or federation than the one there."""
    make_folder(directory)
    taken = f"{directory} takes part in a federation just now.  Stop that first, or leave out {bundle}."
    with hold_lock(directory / ".lock", taken):
        put_in(directory, bundle)


def put_in(directory: Path, bundle: Path) -> None:
    """Unpack a bundle while the directory's lock is held; put the state of a former task aside."""
    from protea.network import task as tasks
    from protea.network.trust.bundles import Bundle, open_bundle, read_bundle, read_invitation
    from protea.network.trust.chain import CHAIN, leads

    there = directory / "bundle"
    if (there / "bundle.json").exists():
        new = read_bundle(bundle)
        old, other = Bundle(there), read_invitation(new["bundle.json"], str(bundle))
        known = leads(new.get(CHAIN, b"[]"), old.coordinator, new["coordinator.pub"])
        if not known or old.invitation.id != other.id:
            raise ConfigError(
                f"{directory} belongs to site {old.invitation.site} of another federation or another site, and has its "
                f"state.  Use another directory for {bundle}: protea site init"
            )
        state = directory / "state"
        if state.exists() and old.task.mark() != tasks.parse_task(new["task.toml"].decode(), str(bundle)).mark():
            # Rounds restart from the first, and the old model may not fit the new task.
            aside = state.rename(unused_path(directory, "state-before"))
            say(Console(), f"The task has changed: what was trained for the former one is in {aside}.")
    open_bundle(bundle, there)
