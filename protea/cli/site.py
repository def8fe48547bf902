"""``protea site``: take part in a federation over a network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from protea.cli.audit import audit_site
from protea.cli.federation import say
from protea.cli.predict import Out, Resize, SamplesPath, progress, refuse_out, show_predictions
from protea.config.units import format_bytes
from protea.core.errors import ConfigError
from protea.core.files import hold_lock, unused_path, write_bytes, write_text

app = typer.Typer(help="Take part in a federation over a network.", no_args_is_help=True)

BundleFile = Annotated[
    Path | None, typer.Argument(metavar="[BUNDLE]", help="What the coordinator sent.", show_default=False)
]
Directory = Annotated[Path, typer.Option("--dir", help="The site's directory.")]
WithAudit = Annotated[bool, typer.Option("--audit", help="Also attack what would leave, and say what leaks.")]
SiteRule = Annotated[
    str | None,
    typer.Option(
        metavar="RULE",
        help="How to answer: head, head_own, local_prototypes or blend; method if sites are protected.  As the task "
        "says, or head.",
        show_default=False,
    ),
]

CODE = '''"""What this site brings: its model and its data.  Both stay here."""

from pathlib import Path

import numpy as np
from torch import nn

HERE = Path(__file__).parent


def model():
    """Any nn.Module that maps a batch of samples to class scores or to features, or an architecture's name."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())


def data():
    """Inputs and labels: (x, y), or (x, y, x_test, y_test); labels are class names of the task, or their numbers.

    A torch Dataset of pairs will do, and so will a table:
        from protea.data.sources.csv_table import Csv
        return Csv(str(HERE / "patients.csv"), label="diagnosis", standardise=True)
    """
    with np.load(HERE / "data.npz") as arrays:
        return arrays["x"], arrays["y"]
'''

SETTINGS = """# Settings of this site.  What is commented out is the default.
# device = "auto"      # or "cpu", "cuda", "mps"
# threads = 1          # of torch
# report = true        # tell the coordinator how accurate this site's model is: counts by class, never samples

# [split]              # of the samples that data() gives, unless it gives a test part too
# test = 0.2
# validation = 0.1

# [training]           # what differs from the task's training, such as
# batch = 32
# lr = 0.005
"""


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="A directory, new or empty.")] = Path(),
    bundle: Annotated[Path | None, typer.Option(help="What the coordinator sent.", show_default=False)] = None,
) -> None:
    """Write a site.py to fill in, and a site.toml."""
    for name in ("site.py", "site.toml"):
        if (directory / name).exists():
            raise ConfigError(f"{directory / name} exists already; it is left as it is.")
    directory.mkdir(parents=True, exist_ok=True)
    write_text(directory / "site.py", CODE)
    write_text(directory / "site.toml", SETTINGS)
    if bundle is not None:
        open_bundle(directory, bundle)
    console, where = Console(), "" if directory == Path() else f" --dir {directory}"
    say(console, f"Fill in model() and data() in {directory / 'site.py'}.")
    say(console, f"Then see what would leave: protea site check BUNDLE{where}")


@app.command()
def check(bundle: BundleFile = None, directory: Directory = Path(), audit: WithAudit = False) -> None:
    """Train one round here, and show exactly what would leave this site.  Nothing is sent."""
    from protea.network.site.check import trial

    if bundle is not None:
        open_bundle(directory, bundle)
    found, console = trial(directory), Console()
    say(console, f"Site {found.site}, client {found.id}, of the task {found.task}.")
    say(console, f"Model {found.model}: {found.parameters:,} parameters, which stay here.")
    say(console, f"Data: {found.train} samples to train on, {found.validation} to validate, {found.test} to test.")
    say(console, "One round was trained here; nothing was sent.  This is what would leave in each round:")
    table = Table(box=SIMPLE)
    for column in ("message", "tensor", "shape", "type", "bytes", "norms of rows"):
        table.add_column(column, justify="right" if column == "bytes" else "left", overflow="fold")
    for leaving in found.leaving:
        table.add_row(leaving.task, leaving.name, leaving.shape, leaving.dtype, f"{leaving.bytes:,}", leaving.norms)
    console.print(table)
    for task, count in found.sizes.items():
        say(console, f"In all, {task}: {format_bytes(count)} as a message.")
    if found.classes:
        say(console, f"Classes whose prototypes leave: {', '.join(found.classes)}.")
    else:
        say(console, "This method sends no prototypes; what it sends instead is in the table.")
    say(console, f"With it go: {found.beside}.")
    if audit:
        audit_site(console, directory)
    say(console, "Ready.  Take part: protea site join" + ("" if directory == Path() else f" --dir {directory}"))


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
    file: Annotated[Path, typer.Argument(help="A new .safetensors file.", show_default=False)],
    directory: Directory = Path(),
) -> None:
    """Write the weights of this site's model, as they are after its last round."""
    from protea.network.site.directory import Site

    if file.exists():
        raise ConfigError(f"{file} exists already.  Choose another name.")
    from safetensors.torch import save

    weights = Site(directory).trained().state_dict()
    write_bytes(file, save({name: tensor.cpu().contiguous().clone() for name, tensor in weights.items()}))
    say(Console(), f"Written: {file}, {len(weights)} tensors, {format_bytes(file.stat().st_size)}")


@app.command()
def predict(
    data: SamplesPath, directory: Directory = Path(), out: Out = "-", rule: SiteRule = None, resize: Resize = False
) -> None:
    """Predict the classes of new samples by this site's own trained model.  Nothing leaves this machine.

    The answer is by the rule that evaluation.answer of the task names, or by the classifier (head) where that rule
    needs what the coordinator last sent, which is not kept here.
    """
    from protea.data.new_samples import read_new_samples
    from protea.network.site.predict import note_on_rule, trained_client, usual_rule
    from protea.runs.predictions import form_of, predict_samples

    refuse_out(out, data)
    site, trained = trained_client(directory)
    rule = rule or usual_rule(site)
    note = note_on_rule(site, trained, rule)
    names = site.task.classes
    samples = read_new_samples(data, site.source(), form_of(trained, names, resize=resize))
    with progress(len(samples)) as told:
        found = predict_samples(trained, samples, names, rule, told)
    where = f"Site {site.name} ({trained.model.name}) after round {trained.client.round}"
    show_predictions(found, out, where, rule, note)


def open_bundle(directory: Path, bundle: Path) -> None:
    """Unpack a bundle into the site's directory; refuse one of another site or federation than the one there."""
    directory.mkdir(parents=True, exist_ok=True)
    taken = f"{directory} takes part in a federation just now.  Stop that first, or leave out {bundle}."
    with hold_lock(directory / ".lock", taken):
        put_in(directory, bundle)


def put_in(directory: Path, bundle: Path) -> None:
    """Unpack a bundle while the directory's lock is held; put the state of a former task aside."""
    from protea.network import task as tasks
    from protea.network.trust.bundles import Bundle, open_bundle, read_bundle, read_invitation

    there = directory / "bundle"
    if (there / "bundle.json").exists():
        new = read_bundle(bundle)
        old, other = Bundle(there), read_invitation(new["bundle.json"], str(bundle))
        if old.coordinator != new["coordinator.pub"] or old.invitation.id != other.id:
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
