"""Accuracy against epsilon, for privacy.md.

    python docs/privacy_curves.py run banking77     # adds to docs/results/privacy-banking77.json what is not in it
    python docs/privacy_curves.py run digits
    python docs/privacy_curves.py draw              # docs/privacy-curves.png, and the table in Markdown

Seeds of banking77 differ in first weights, batches and noise, those of digits in the split as well.
Every epsilon is at delta 1e-5, for one training record of a client, of all its uploads.  Needs matplotlib.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tomllib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import protea
from protea.config.experiment import experiment_from_table
from protea.core.accounting import epsilon_of, gaussian_mu
from protea.filters.noise import Noise

HERE = Path(__file__).parent
RESULTS = HERE / "results"
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
SEEDS = (1, 2, 3)
SLOW = 1  # seeds of DP-SGD

TEXTS = """
rounds = 3
clients = 5
data = { source = "banking77", partition = { kind = "dirichlet", alpha = 1.0 }, seed = 1 }
models = { members = [{ name = "hf:minilm", train_layers = 0 }], dim = 384 }
training = { batch = 32, lr = 0.001, optimizer = "adam" }
evaluation = { every = 3, shared = "never", snapshots = 0, local_prototypes = true }
engine = { name = "inline" }
"""
DIGITS = """
rounds = 8
clients = 5
data = { source = "digits", partition = { kind = "dirichlet", alpha = 1.0 } }
models = { family = "tiny_mlp", dim = 64 }
training = { batch = 20, lr = 0.05 }
evaluation = { every = 8, shared = "never", snapshots = 0 }
engine = { name = "inline" }
"""


class RandomFeatures(nn.Module):
    """A body that never trains: random features of an image, the same for all clients, of length 1."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 256) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(7)
        self.register_buffer("weights", torch.randn(math.prod(shape), width, generator=draws))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize((x.flatten(1) @ self.weights).relu(), dim=1)


def filter_for(epsilon: float, clip: float, releases: int = 1) -> dict[str, Any]:
    """The noise filter that costs epsilon in so many releases."""
    return noise_with(gaussian_mu(epsilon, DELTA) / math.sqrt(releases), clip)


def noise_with(mu: float, clip: float) -> dict[str, Any]:
    return {"name": "noise", "clip": clip, "noise": Noise(noise=1.0).mu / mu, "budget": {"delta": DELTA}}


def composed_for(epsilon: float, rate: float, steps: int, rounds: int, clip: float) -> dict[str, Any]:
    """Noise of training and of the filter, the same share of both, that together cost epsilon."""
    low, high = 0.5, 60.0
    for _ in range(12):
        noise = math.sqrt(low * high)
        cost = epsilon_of([(noise, rate, steps * rounds), (4 * noise, 1.0, rounds)], DELTA)
        low, high = (noise, high) if cost > epsilon else (low, noise)
    return {
        "training.dp": {"noise": high, "clip": 1.0, "budget": {"delta": DELTA}},
        "filters": [noise_with(1 / (4 * high), clip)],
    }


def settings(which: str) -> dict[str, dict[str, Any]]:
    """By curve and epsilon, the changes of the table."""
    found: dict[str, dict[str, Any]] = {}
    if which == "banking77":
        found["local, no federation"] = {"method.name": "local"}
        found["FedProto, frozen MiniLM|none"] = {"method": {"name": "fedproto"}}
        for epsilon in EPSILONS:
            found[f"FedProto, frozen MiniLM|{epsilon:g}"] = {
                "method": {"name": "fedproto"},
                "filters": [filter_for(epsilon, 1.0)],
            }
        return found
    found["local, no federation"] = {"method.name": "local"}
    fixed = {"method": {"name": "fedproto"}, "models": {"members": ["privacy_curves:RandomFeatures"], "dim": 256}}
    found["FedProto, frozen random features|none"] = fixed
    for epsilon in EPSILONS:
        found[f"FedProto, frozen random features|{epsilon:g}"] = {**fixed, "filters": [filter_for(epsilon, 1.0)]}
    loo = {"name": "fedloo", "parts": 1, "least": 1}
    found["FedLOO, every client alone"] = {"method": loo, "alone": True}
    found["FedLOO, common map|none"] = {"method": loo}
    found["FedProto, DP-SGD and noise|none"] = {"method": {"name": "fedproto"}}
    for epsilon in EPSILONS:
        found[f"FedLOO, common map|{epsilon:g}"] = {"method": loo, "filters": [filter_for(epsilon, 4.0)]}
    for epsilon in EPSILONS:
        found[f"FedProto, DP-SGD and noise|{epsilon:g}"] = {
            "method": {"name": "fedproto"},
            "composed": epsilon,
        }
    return found


def changed(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    for name, value in changes.items():
        *above, last = name.split(".")
        part = table
        for each in above:
            part = part.setdefault(each, {})
        part[last] = value
    return table


def run(which: str) -> None:
    base = TEXTS if which == "banking77" else DIGITS
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"privacy-{which}.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    for seed in SEEDS:
        for name, changes in settings(which).items():
            place = f"{name}|seed {seed}"
            if place in kept:
                continue
            if "DP-SGD" in name and seed > SLOW:
                continue
            changes = dict(changes)
            if "composed" in changes:  # found here, as it takes a while
                changes |= composed_for(changes.pop("composed"), 20 / 200, 10, 8, 4.0)
            table = changed(tomllib.loads(base), {**changes, "seed": seed})
            result = protea.Run(experiment_from_table(table), progress=False, keep_models=False).finish()
            told = result.summary.get("privacy")
            by_rule = {rule: round(score.weighted, 4) for rule, score in result.by_rule.items()}
            kept[place] = {
                "accuracy": round(result.accuracy, 4),
                "epsilon": told and told["epsilon"],
                "by_rule": by_rule,
            }
            sys.stdout.write(f"{place}: {kept[place]['accuracy']}, epsilon {kept[place]['epsilon']}\n")
            sys.stdout.flush()
            file.write_text(json.dumps(kept, indent=0) + "\n")


def collected() -> dict[str, dict[str, dict[str, list[float]]]]:
    """Accuracies by data set, curve and epsilon."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for file in sorted(RESULTS.glob("privacy-*.json")):
        which = file.stem.removeprefix("privacy-")
        for place, values in json.loads(file.read_text()).items():
            curve, *rest = place.split("|")
            epsilon = rest[0] if len(rest) == 2 else "none"
            found.setdefault(which, {}).setdefault(curve, {}).setdefault(epsilon, []).append(100 * values["accuracy"])
    return found


def draw() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = collected()
    figure, axes = plt.subplots(1, len(found), figsize=(4.2 * len(found), 4.0), squeeze=False)
    colours = ["#777777", "#0072b2", "#d55e00", "#009e73", "#cc79a7"]
    for ax, (which, curves) in zip(axes[0], found.items(), strict=True):
        for curve, colour in zip(curves, colours, strict=False):
            points = sorted((float(e), values) for e, values in curves[curve].items() if e != "none")
            without = statistics.mean(curves[curve]["none"])
            if points:
                x, y = [p[0] for p in points], [statistics.mean(p[1]) for p in points]
                ax.plot(x, y, "o-", color=colour, label=curve)
                ax.fill_between(
                    x, [min(p[1]) for p in points], [max(p[1]) for p in points], color=colour, alpha=0.2, lw=0
                )
            dash = {} if points else {"label": curve}
            ax.axhline(without, color=colour, ls="--" if points else ":", lw=1, **dash)
        ax.set(
            xscale="log",
            xlabel="epsilon (delta 1e-5)",
            ylabel="accuracy in %",
            title=f"{which} (dashed: without noise)",
            ylim=(0, 100),
        )
        ax.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        ax.minorticks_off()
        ax.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    figure.tight_layout()
    figure.savefig(HERE / "privacy-curves.png", dpi=130)
    for which, curves in found.items():
        for curve, by_epsilon in curves.items():
            cells = []
            for e in [*(f"{e:g}" for e in EPSILONS), "none"]:
                values = by_epsilon.get(e)
                cells.append(
                    "-" if not values else f"{statistics.mean(values):.1f} ({min(values):.1f}-{max(values):.1f})"
                )
            sys.stdout.write(f"| {which} | {curve} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    run(sys.argv[2]) if sys.argv[1] == "run" else draw()
