"""The model card, and the lines of Python that load a model without Protea."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from protea.config.units import percent
from protea.config.words import RULES
from protea.data.table_cells import MISSING
from protea.data.table_form import TableForm
from protea.runs.model_folder.contents import TRIED, Contents
from protea.runs.model_folder.reading import TOKENIZER, Reading

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


TEXTS = """import csv, json, {modules}
from pathlib import Path
import {packages}

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text(encoding="utf-8"))
model, rule, texts = torch.export.load(here / "program.pt2").module(), about["preparation"]["texts"], sys.argv[1:]
if texts[0].endswith(".csv"):
    csv.field_size_limit(1 << 27)
    with open(texts[0], newline="", encoding={encoding!r}) as file:
        texts = [row[{column!r}] for row in csv.DictReader(file, delimiter={delimiter!r})]
x = torch.full((len(texts), rule["length"]), rule["padding"])
{numbers}
for row in model(x):
    print(about["classes"][row.argmax()], *(f"{{chance:.6f}}" for chance in row))
"""

WORDS = """for row, text in zip(x, texts):
    words = re.findall(rule["word"], text.lower())[: len(row)]
    row[: len(words)] = torch.tensor([1 + zlib.crc32(word.encode()) % (rule["size"] - 1) for word in words])"""

TOKENS = """for row, coded in zip(x, tokenizers.Tokenizer.from_file(str(here / rule["file"])).encode_batch(texts)):
    row[: len(coded.ids)] = torch.tensor(coded.ids)"""


def texts_script(form: TableForm, reading: Reading) -> str:
    """Return the file of a model of texts, which are given as they are or in a column of a table."""
    words = reading.encoder is None
    code = TEXTS.format(
        modules="re, sys, zlib" if words else "sys",
        packages="torch" if words else "tokenizers, torch",
        encoding=(form.source.encoding or "utf-8").replace("utf-8", "utf-8-sig"),
        delimiter=form.source.delimiter or ",",
        column=form.source.text,
        numbers=WORDS if words else TOKENS,
    )
    return HEAD.format(example='new.csv, or "a text" ...') + code


def load_script(contents: Contents) -> str:
    """Return the Python file that loads the model by torch alone; with the package tokenizers where it is needed."""
    preparation = contents.origin.preparation
    if preparation.texts is not None and preparation.table is not None:
        return texts_script(preparation.table, preparation.texts)
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
    reading = preparation.texts
    others = "" if preparation.table else " and numpy"
    others = " and tokenizers" if reading is not None and reading.encoder is not None else others
    yield f"python load.py {example}      # needs torch{others} only"
    if reading is not None and preparation.table is not None:
        yield from ('python load.py "a text"', "```", "")
        yield from _texts(preparation.table, reading)
        yield from (f"Classes: {', '.join(f'`{name}`' for name in contents.origin.classes)}.", "")
        return
    yield from ("```", "")
    yield f"The program takes a batch `(samples, {', '.join(map(str, preparation.shape))})` of `{preparation.word}`"
    yield "and gives class probabilities. Numbers are as in the file: " + (
        "scaling is part of the program." if preparation.scalings else "nothing has to be scaled."
        if preparation.dtype != torch.uint8 else "bytes from 0 to 255."
    )  # fmt: skip
    yield ""
    if preparation.table is not None:
        yield from (f"Columns: {', '.join(f'`{name}`' for name in preparation.table.features)}.", "")
    yield from (f"Classes: {', '.join(f'`{name}`' for name in contents.origin.classes)}.", "")


def _texts(form: TableForm, reading: Reading) -> Iterator[str]:
    yield f"Texts are in the column `{form.source.text}` of a table.  The program takes `(samples, {reading.length})`"
    yield "whole numbers (`int64`) and gives class probabilities."
    yield ""
    if reading.encoder is None:
        yield "A text is put into small letters and cut into words by the rule in `model.json`; the first"
        yield f"{reading.length} are read.  The number of a word is 1 plus its CRC-32 modulo {reading.size - 1}:"
        yield "there is no vocabulary.  0 is no word."
    else:
        yield f"A text is cut into tokens by `{TOKENIZER}`, {reading.length} at most; -1 is no token."
        yield "The folder carries all layers of its encoder, also those that were not trained."
        yield licence(reading)
        yield f"Checksum of the encoder as it was before: `{reading.encoder.checksum}`."
    yield ""


def licence(reading: Reading) -> str:
    """Say under what licence the encoder is that a folder carries."""
    known = reading.encoder.licence if reading.encoder is not None else ""
    said = f"The licence of that encoder is {known}, as its model card says" if known else "It states no licence"
    return f"{said}: see what that asks for before you pass the folder on."


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
    if contents.origin.preparation.texts is not None and contents.origin.preparation.texts.encoder is not None:
        yield f"| `{TOKENIZER}` | vocabulary and rules of tokens, for the package tokenizers |"
    yield "| `weights.safetensors` | the network alone, by the names of its parameters |"
    if contents.prototypes:
        yield "| `prototypes.safetensors` | class prototypes: vectors, and the samples behind each |"
    yield from ("| `load.py` | lines that load the model without Protea |", "")
    yield f"On {TRIED} random inputs the program's probabilities differ from the"
    yield f"original's by at most {contents.difference:.1e}."
    if contents.onnx is not None:
        yield f"Those of `model.onnx` differ from the program's by at most {contents.onnx_difference:.1e}."
