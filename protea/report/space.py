"""Where prototypes lie: from the snapshots of a run to maps of them in the plane."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

Matrix = NDArray[np.float32]
Named = Mapping[str, NDArray[Any]]

GLOBAL, SAMPLE = -1, -2  # owners of points that are no client's prototypes
MOST = 4500  # points on one map: t-SNE takes half a minute for these
SAMPLES = 120  # features of a client that are drawn in each snapshot
CLIENTS = 4  # most clients whose features get a map
DEEP = 50  # dimensions that t-SNE starts from, after PCA


def space(snapshots: Mapping[int, Path], tsne: bool = True) -> dict[str, Any] | None:
    """Maps of all prototypes and of clients' features, and cosines of the global prototypes; None without any.

    All snapshots lie on one common map, so that points can be followed from round to round.
    """
    if not snapshots:
        return None
    found = {round: load_file(path) for round, path in thinned(snapshots).items()}
    return {
        "rounds": list(found),
        "all": len(snapshots),
        "cosines": [cosines(named) for named in found.values()],
        "prototypes": laid_out([prototypes(named) for named in found.values()], tsne),
        "features": {
            client: laid_out([features(named, client) for named in found.values()], tsne)
            for client in holders(list(found.values()))
        },
    }


def thinned(snapshots: Mapping[int, Path]) -> dict[int, Path]:
    """As many of the snapshots, evenly spread and with the last, as give a map of at most ``MOST`` points."""
    rounds = sorted(snapshots)
    points = max(1, len(prototypes(load_file(snapshots[rounds[-1]]))[0]))
    keep = min(len(rounds), max(1, MOST // points))
    chosen = {rounds[len(rounds) - 1 - index * len(rounds) // keep] for index in range(keep)}
    return {round: snapshots[round] for round in sorted(chosen)}


Points = tuple[list[int], list[int], Matrix]  # owners, classes, vectors


def prototypes(named: Named) -> Points:
    """The prototypes of the server and of every client in a snapshot."""
    owners = sorted({int(name.split(".")[0]) for name in named if name.endswith(".prototypes.vectors")})
    parts = [some(named, f"{client}.prototypes", client) for client in owners]
    return joined([some(named, "global", GLOBAL), *parts])


def holders(snapshots: Sequence[Named]) -> list[int]:
    """The clients whose features are in the most snapshots, in the order of their numbers."""
    ends = ".features"
    held = Counter(int(name.removesuffix(ends)) for named in snapshots for name in named if name.endswith(ends))
    return sorted(client for client, _ in held.most_common(CLIENTS))


def features(named: Named, client: int) -> Points:
    """A client's features, its prototypes, and the global ones; nothing if the snapshot has no features of it."""
    if f"{client}.features" not in named:
        return joined([])
    vectors, labels = named[f"{client}.features"], named[f"{client}.labels"]
    rows = np.linspace(0, len(labels) - 1, min(len(labels), SAMPLES)).astype(int)
    samples = ([SAMPLE] * len(rows), [int(label) for label in labels[rows]], vectors[rows].astype(np.float32))
    return joined([samples, some(named, f"{client}.prototypes", client), some(named, "global", GLOBAL)])


def some(named: Named, prefix: str, owner: int) -> Points:
    """The prototypes under a prefix of a snapshot, which holds rows for classes whose count is not 0."""
    if f"{prefix}.vectors" not in named:
        return [], [], np.zeros((0, 0), np.float32)
    labels = [int(label) for label in np.flatnonzero(named[f"{prefix}.counts"] > 0)]
    return [owner] * len(labels), labels, named[f"{prefix}.vectors"].astype(np.float32)


def joined(parts: Sequence[Points]) -> Points:
    """All points together, without those that are not finite."""
    parts = [part for part in parts if part[0]]
    if not parts:
        return [], [], np.zeros((0, 0), np.float32)
    owners = [owner for part in parts for owner in part[0]]
    labels = [label for part in parts for label in part[1]]
    vectors = np.concatenate([part[2] for part in parts])
    kept = np.isfinite(vectors).all(1)  # half precision ends at 65504
    if kept.all():
        return owners, labels, vectors
    rows = np.flatnonzero(kept)
    return [owners[row] for row in rows], [labels[row] for row in rows], vectors[rows]


def laid_out(frames: Sequence[Points], tsne: bool = True) -> dict[str, Any] | None:
    """One map of all frames: for each the owners, the classes, and by projection x, y, x, y and so on."""
    vectors = [frame[2] for frame in frames if len(frame[0])]
    if not vectors:
        return None
    everything = np.concatenate(vectors)
    # Many threads for few points wait for each other, on a busy machine twenty times as long.
    with threadpool_limits(1):
        maps, shares = project(everything, tsne)
    ends = np.cumsum([len(frame[0]) for frame in frames])[:-1]
    cut = {name: np.split(points, ends) for name, points in maps.items()}
    return {
        "shares": shares,
        "frames": [
            {"owner": owners, "label": labels, **{name: plain(parts[index]) for name, parts in cut.items()}}
            for index, (owners, labels, _) in enumerate(frames)
        ],
    }


def project(vectors: Matrix, tsne: bool = True) -> tuple[dict[str, Matrix], list[float]]:
    """The vectors in the plane, by PCA and by t-SNE; and the share of the variance on either axis of PCA.

    Seeded, so equal runs have equal maps.  Where all vectors are one point there is nothing to lay out.
    """
    count, dim = vectors.shape
    if count < 2 or float(np.ptp(vectors, axis=0).max(initial=0)) < 1e-6:
        return {"pca": np.zeros((count, 2), np.float32)}, [0.0, 0.0]
    pca = PCA(min(DEEP, count, dim), svd_solver="full")
    deep = pca.fit_transform(vectors).astype(np.float32)
    flat = np.zeros((count, 2), np.float32)
    flat[:, : deep.shape[1]] = deep[:, :2]
    maps = {"pca": unit(flat)}
    shares = [float(share) for share in pca.explained_variance_ratio_[:2]]
    if tsne and count >= 10 and deep.shape[1] > 2:  # fewer, or a plane already, gain nothing by it
        slow = TSNE(2, init="pca", perplexity=min(30, (count - 1) / 3), max_iter=500, random_state=0)
        maps["tsne"] = unit(slow.fit_transform(deep))
    return maps, [round(share, 4) for share in (*shares, 0.0)[:2]]


def unit(points: Matrix) -> Matrix:
    """Move and scale points into the square from -1 to 1, both axes by the same factor."""
    low, high = points.min(0), points.max(0)
    scaled: Matrix = (points - (low + high) / 2) / (max(float((high - low).max()), 1e-12) / 2)
    return scaled


def plain(points: Matrix) -> list[float]:
    """Points as a flat list x, y, x, y of four digits each."""
    return [round(float(value), 4) for value in points.ravel()]


def cosines(named: Named) -> dict[str, Any] | None:
    """The cosine of every two global prototypes; None where there are none."""
    _, labels, vectors = joined([some(named, "global", GLOBAL)])
    if not labels:
        return None
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = vectors / np.maximum(lengths, 1e-12)
    return {"classes": labels, "rows": [[round(float(c), 3) for c in row] for row in directions @ directions.T]}
