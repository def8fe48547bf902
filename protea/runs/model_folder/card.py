"""The model card, and the lines of Python that load a model without Protea."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from protea.config.units import percent
from protea.config.words import RULES
from protea.data.table_cells import MISSING
from protea.runs.model_folder.contents import TRIED, Contents

HEAD = '''"""Class probabilities by this model, without Protea: python load.py {example}"""
'''

ARRAYS = """import json, sys
from pathlib import Path
import numpy as np, torch

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text(encoding="utf-8"))
model = torch.export.load(here / "program.pt2").module()
x = torch.from_numpy(np.load(sys.argv[1])["x"]).to(torch.{dtype}){reshape}
for row in model(x):
    print(about["classes"][row.argmax()], *(f"{{chance:.6f}}" for chance in row))
"""

TABLE = """import csv, json, sys
from pathlib import Path
import torch

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text(encoding="utf-8"))
model, table = torch.export.load(here / "program.pt2").module(), about["preparation"]["table"]
with open(sys.argv[1], newline="", encoding=table["encoding"]) as file:
    rows = list(csv.DictReader(file, delimiter=table["delimiter"]))
x = []
for row in rows:  # categories are a number for each value; what is missing is nan
    cells = [(row[name].strip(), table["categories"].get(name)) for name in table["features"]]
    x.append([n for cell, values in cells for n in ([cell == v for v in values] if values else [NUMBER])])
for row in model(torch.tensor(x, dtype=torch.float64)):
    print(about["classes"][row.argmax()], *(f"{chance:.6f}" for chance in row))
"""


def load_script(contents: Contents) -> str:
    """Return the Python file that loads the model by torch alone."""
    preparation = contents.origin.preparation
    if preparation.table is not None:
        gaps = preparation.fill is not None
        number = f'float("nan" if cell.lower() in {sorted(MISSING)} else cell)' if gaps else "float(cell)"
        return HEAD.format(example="new.csv") + TABLE.replace("NUMBER", number)
    grey = preparation.shape[:1] == (1,)  # an .npz file may leave out the axis of channels
    reshape = f".reshape(-1, {', '.join(map(str, preparation.shape))})" if grey else ""
    return HEAD.format(example="new.npz") + ARRAYS.format(dtype=preparation.word, reshape=reshape)


def model_card(contents: Contents) -> str:
    """Return the model card, in Markdown."""
    return "\n".join(_lines(contents)).rstrip() + "\n"


def _lines(contents: Contents) -> Iterator[str]:
    origin = contents.origin
    yield from (f"# {origin.who}", "")
    yield f"A classifier with {len(origin.classes)} classes, trained by {origin.method}, after round {contents.round}."
    yield f"Architecture: `{contents.architecture}`, {contents.parameters:,} parameters, {contents.dim} features."
    yield ""
    yield from _use(contents)
    yield from ("## How it answers", "", f"Rule `{contents.rule}`: {contents.rule_words}.", "")
    if contents.note:
        yield from (f"**Not as in the federation.** {contents.note}", "")
    yield from _data(contents)
    yield from _accuracy(contents)
    yield from ("## Privacy", "")
    yield from (f"- {line}" for line in origin.privacy or ("Nothing was added to what the client sent.",))
    if origin.preparation.scalings:
        yield "- The folder holds means and deviations of features over training samples."
    if origin.preparation.fill is not None:
        yield "- The folder holds medians of features over training samples, which stand for missing numbers."
    if contents.prototypes:
        yield "- The folder holds class prototypes: mean features of training samples."
    yield "- A model can remember training samples. Give the folder only to whom the samples may be known."
    yield ""
    if origin.settings:
        yield from ("## Settings of the federation", "", "```")
        yield from (f"{name} = {value}" for name, value in origin.settings.items())
        yield from ("```", "")
    yield from _files(contents)


def _use(contents: Contents) -> Iterator[str]:
    preparation = contents.origin.preparation
    example = "new.csv" if preparation.table is not None else "new.npz"
    yield from ("## Use it", "", "```sh", f"protea predict THIS_FOLDER {example}")
    yield from (
        f"python load.py {example}      # needs torch{'' if preparation.table else ' and numpy'} only",
        "```",
        "",
    )
    yield f"The program takes a batch `(samples, {', '.join(map(str, preparation.shape))})` of `{preparation.word}`"
    yield "and gives class probabilities. Numbers are as in the file: " + (
        "scaling is part of the program." if preparation.scalings else "nothing has to be scaled."
        if preparation.dtype != torch.uint8 else "bytes from 0 to 255."
    )  # fmt: skip
    yield ""
    if preparation.table is not None:
        yield from (f"Columns: {', '.join(f'`{name}`' for name in preparation.table.features)}.", "")
    yield from (f"Classes: {', '.join(f'`{name}`' for name in contents.origin.classes)}.", "")


def _data(contents: Contents) -> Iterator[str]:
    yield from ("## Samples", "", "| class | " + " | ".join(contents.samples) + " |")
    yield "|---" * (1 + len(contents.samples)) + "|"
    for place, name in enumerate(contents.origin.classes):
        yield f"| {name} | " + " | ".join(f"{counts[place]:,}" for counts in contents.samples.values()) + " |"
    yield "| all | " + " | ".join(f"{sum(counts):,}" for counts in contents.samples.values()) + " |"
    yield ""


def _accuracy(contents: Contents) -> Iterator[str]:
    yield from ("## Accuracy", "")
    if not contents.accuracy:
        yield from ("The client has no test samples: nothing is known.", "")
        return
    samples = next(iter(contents.accuracy.values()))[1]
    yield f"On the client's own {samples:,} test samples, which it did not train on, counted when this"
    yield "folder was made. Other samples may be answered worse."
    yield from ("", "| rule | accuracy | |", "|---|---|---|")
    for rule, (right, of) in contents.accuracy.items():
        mark = "this folder's" if rule == contents.rule else ""
        yield f"| {rule} ({RULES.get(rule, 'own')}) | {percent(right / of)} % | {mark} |"
    yield ""


def _files(contents: Contents) -> Iterator[str]:
    yield from ("## Files", "", "| file | |", "|---|---|")
    yield "| `model.json` | classes, preparation, rule, samples, accuracy, checksums of the other files |"
    yield "| `program.pt2` | model and rule, for `torch.export.load` |"
    yield "| `program.json`, `constants.safetensors` | the same as plain data, which Protea reads |"
    if contents.onnx is not None:
        yield "| `model.onnx` | the same for ONNX Runtime: `samples` in, `probabilities` out |"
    yield "| `weights.safetensors` | the network alone, by the names of its parameters |"
    if contents.prototypes:
        yield "| `prototypes.safetensors` | class prototypes: vectors, and the samples behind each |"
    yield from ("| `load.py` | lines that load the model without Protea |", "")
    yield f"On {TRIED} random inputs the program's probabilities differ from the"
    yield f"original's by at most {contents.difference:.1e}."
    if contents.onnx is not None:
        yield f"Those of `model.onnx` differ from the program's by at most {contents.onnx_difference:.1e}."
