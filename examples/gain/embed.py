"""Turn a public set of texts into vectors by a frozen encoder, once, so that many runs can read them.

    python examples/gain/embed.py banking77 ohsumed mtsamples --to features

Each becomes an .npz file of the encoder's mean outputs, 384 numbers a text for MiniLM, with labels, class names and the
source's own test part.  Needs the extra ``text`` and the files of docs/data.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from protea.core.files import writing
from protea.data.sources.public_texts import Banking77, Clinc150, MTSamples, Ohsumed, Trec
from protea.models.common_texts import common_view

SOURCES = {"banking77": Banking77, "clinc150": Clinc150, "mtsamples": MTSamples, "ohsumed": Ohsumed, "trec": Trec}
TOGETHER = 64  # texts that the encoder gets at once


def main() -> None:
    """Read the names of data sets from the command line and write one file for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", choices=sorted(SOURCES), help="public sets of texts")
    parser.add_argument("--to", type=Path, default=Path("features"), help="folder of the files")
    parser.add_argument("--encoder", default="minilm", help="what hf: takes")
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    for name in given.names:
        embed(name, given.encoder, given.to / f"{name}.npz")


def embed(name: str, encoder: str, path: Path) -> None:
    """Write the vectors of one data set; does nothing where the file is there already."""
    if path.exists():
        print(f"{path} is there.")
        return
    data, view = SOURCES[name]().load(), common_view(encoder)
    texts = [data.x[row] for row in range(len(data))]
    rows, said = [], 0
    for start in range(0, len(texts), TOGETHER):
        rows.append(view(texts[start : start + TOGETHER]).numpy())
        done = min(start + TOGETHER, len(texts))
        if 10 * done // len(texts) > said:  # a line for every tenth, on a terminal as in a log
            said = 10 * done // len(texts)
            print(f"{name}: {done:,} of {len(texts):,} texts", flush=True)
    x, y, train = np.concatenate(rows), data.y.numpy(), len(data) - data.tests
    parts = {"x_test": x[train:], "y_test": y[train:]} if data.tests else {}
    with writing(path) as file:
        np.savez(file, x=x[:train], y=y[:train], names=np.array(data.names), **parts)


if __name__ == "__main__":
    main()
