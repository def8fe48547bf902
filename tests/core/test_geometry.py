"""Numbers are those of the papers' formulas worked out by hand, or of autograd in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from night import by_night
from torch import Tensor

from protea import Prototypes, geometry
from protea.core import row_pairs
from protea.core.devices import torch_threads


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with torch_threads(1):  # as on the server; more wait for each other on a busy machine
        yield


def rows(*values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def directions(classes: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(classes, dim, generator=generator, dtype=torch.float64), dim=1)


def rotation(dim: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(directions(dim, dim, seed))[0]


def sent(*vectors: Tensor) -> list[Prototypes]:
    return [Prototypes(v, (v != 0).any(1).double()) for v in vectors]


def distances(x: Tensor) -> Tensor:
    """Of all pairs, by differences."""
    i, j = torch.triu_indices(len(x), len(x), 1)
    return torch.linalg.vector_norm(x[i] - x[j], dim=1)


shapes = given(classes=st.integers(2, 9), dim=st.integers(2, 7), seed=st.integers(0, 999))
few = settings(max_examples=15, deadline=None)


# Margins


def test_the_margin_of_a_class_is_the_distance_to_the_nearest_other_one():
    points = rows([0, 0], [2, 0], [0, 2], [2, 2], [1, 0])
    assert geometry.margins(points).tolist() == pytest.approx([1, 1, 2, 2, 1])


def test_absent_classes_have_no_margin_and_give_none():
    points = rows([0, 0], [1, 0], [5, 0], [9, 9])
    found = geometry.margins(points, torch.tensor([True, False, True, False]))
    assert found.tolist() == pytest.approx([5, math.inf, 5, math.inf])


def test_a_class_alone_has_an_infinite_margin_and_two_at_one_point_have_none():
    assert geometry.margins(rows([3, 4])).tolist() == [math.inf]
    assert geometry.margins(rows([3, 4], [1, 1]), torch.tensor([True, False])).tolist() == [math.inf, math.inf]
    assert geometry.margins(rows([3, 4], [3, 4])).tolist() == [0, 0]


def test_margins_of_close_pairs_far_from_the_origin_keep_their_digits():
    """Single precision has seven digits: |a|^2 + |b|^2 - 2 a.b of these is noise."""
    points = torch.tensor([[1000.0, 0.0], [1000.0, 0.25], [-1000.0, 0.0], [-1000.0, 0.5]])
    assert geometry.margins(points).tolist() == [0.25, 0.25, 0.5, 0.5]


# Energy and forces


@pytest.mark.parametrize(
    ("classes", "distance", "least"),
    [(3, 1.732051, -1.647918), (4, 1.632993, -2.942488), (10, 1.490712, -17.966423), (100, 1.421338, -1740.413853)],
)
def test_the_simplex_has_equal_distances_and_the_least_energy(classes: int, distance: float, least: float):
    best = geometry.simplex(classes, classes - 1, torch.float64)
    torch.testing.assert_close(
        distances(best), torch.full((math.comb(classes, 2),), distance).double(), atol=1e-6, rtol=0
    )
    assert geometry.energy(best) == pytest.approx(least, abs=1e-6)
    assert geometry.energy(best) < geometry.energy(directions(classes, classes - 1))


def test_a_simplex_needs_one_dimension_less_than_it_has_classes():
    assert geometry.simplex(1, 3).tolist() == [[1, 0, 0]]
    assert geometry.simplex(2, 3).tolist() == [[1, 0, 0], [-1, 0, 0]]
    with pytest.raises(ValueError, match="5 classes cannot all be equally far apart in 3 dimensions: at most 4"):
        geometry.simplex(5, 3)


def test_the_energy_of_a_regular_hexagon():
    """In the plane the regular K-gon has energy -(K / 2) log K."""
    angles = torch.arange(6, dtype=torch.float64) * math.pi / 3
    assert geometry.energy(torch.stack([angles.cos(), angles.sin()], dim=1)) == pytest.approx(-3 * math.log(6))


def test_two_orthogonal_rows_push_each_other_by_half():
    assert geometry.forces(rows([1, 0], [0, 1])).tolist() == [[0.5, -0.5], [-0.5, 0.5]]


@few
@shapes
def test_forces_add_up_to_nothing_and_have_a_constant_radial_part(classes: int, dim: int, seed: int):
    x = directions(classes, dim, seed)
    force = geometry.forces(x)
    torch.testing.assert_close(force.sum(0), torch.zeros(dim).double(), atol=1e-7, rtol=0)
    torch.testing.assert_close((force * x).sum(1), torch.full((classes,), (classes - 1) / 2).double())


@few
@shapes
def test_forces_are_the_downhill_slope_of_the_energy(classes: int, dim: int, seed: int):
    x = directions(classes, dim, seed).requires_grad_()
    (slope,) = torch.autograd.grad(-distances(x).log().sum(), x)
    torch.testing.assert_close(geometry.forces(x.detach()), -slope, atol=1e-6, rtol=1e-6)


def test_forces_agree_with_finite_differences_of_the_energy():
    x, step = directions(4, 3), 1e-5
    force = geometry.forces(x)
    for c, k in ((0, 0), (1, 2), (3, 1)):
        ahead, behind = x.clone(), x.clone()
        ahead[c, k] += step
        behind[c, k] -= step
        slope = (geometry.energy(ahead) - geometry.energy(behind)) / (2 * step)
        assert force[c, k].item() == pytest.approx(-slope, rel=1e-6)


def test_forces_of_close_pairs_keep_their_digits_in_single_precision():
    """At a distance of 0.0001 the push is 10,000 apart; the third row is far away."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0001], [-1.0, 0.0]])
    torch.testing.assert_close(geometry.forces(x)[:2, 1], torch.tensor([-10000.0, 10000.0]), rtol=1e-6, atol=0)


def test_rows_at_one_point_do_not_push_each_other():
    assert geometry.forces(rows([0.6, 0.8], [0.6, 0.8])).tolist() == [[0, 0], [0, 0]]
    assert geometry.energy(rows([0.6, 0.8], [0.6, 0.8])) == math.inf


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    x = directions(30, 6)
    x[7] = x[3] + 1e-6
    uploads = sent(x, directions(30, 6, 1))

    def everything() -> list[Tensor]:
        dense, sparse = (
            geometry.refine(x, uploads, weight=0.5, margin=0.4, steps=4, pairs=pairs)  # type: ignore[arg-type]
            for pairs in ("dense", "sparse")
        )
        aligned = geometry.align(directions(30, 6), lr=0.01, steps=4).vectors
        return [geometry.margins(x), geometry.forces(x), torch.tensor(geometry.energy(x)), dense, sparse, aligned]

    whole = everything()
    for block in (1, 70, 300):
        monkeypatch.setattr(row_pairs, "BLOCK", block)
        for part, expected in zip(everything(), whole, strict=True):
            torch.testing.assert_close(part, expected)


# Alignment


def test_the_first_step_of_two_orthogonal_rows():
    """(1, 0) + 0.1 (0.5, -0.5) = (1.05, -0.05), over its length."""
    found = geometry.align(rows([1, 0], [0, 1]), steps=1)
    assert found.vectors[0].tolist() == pytest.approx([0.998868, -0.047565], abs=1e-6)
    assert found.steps == 1


def test_two_rows_end_opposite_each_other():
    found = geometry.align(rows([3, 0], [0, 0.5]), tol=1e-7)
    assert (found.vectors[0] @ found.vectors[1]).item() == pytest.approx(-1)
    assert found.energy == pytest.approx(-math.log(2))
    assert found.steps < 500 and found.residual < 1e-7


@pytest.mark.parametrize(("classes", "dim"), [(3, 2), (4, 3), (10, 512)])
def test_it_finds_the_simplex_where_there_is_room(classes: int, dim: int):
    crowded = torch.rand(classes, dim, generator=torch.Generator().manual_seed(0)) + 0.5
    found = geometry.align(crowded)
    assert found.steps < 500 and found.residual < 1e-4
    assert found.energy == pytest.approx(geometry.energy(geometry.simplex(classes, dim)), rel=1e-5)
    torch.testing.assert_close(found.vectors.norm(dim=1), torch.ones(classes))


def test_six_rows_in_the_plane_become_a_hexagon():
    found = geometry.align(directions(6, 2))
    assert found.energy == pytest.approx(-5.375278, abs=1e-5)
    assert geometry.margins(found.vectors).tolist() == pytest.approx([1] * 6, abs=1e-3)


@pytest.mark.parametrize("classes", [10, 100])
def test_the_rule_of_the_code_stops_after_21_steps_far_from_rest(classes: int):
    crowded = torch.rand(classes, 512, generator=torch.Generator().manual_seed(0)) + 0.5
    early, late = geometry.align(crowded, stop="code"), geometry.align(crowded)
    assert early.steps == 21
    assert early.residual > 2 * late.residual and early.energy > late.energy
    spread = distances(late.vectors)
    if classes == 100:  # not at rest either, after 500 steps
        assert (late.steps, round(spread.mean().item(), 3)) == (500, 1.421)
        assert 1.37 < spread.min() < 1.4 and 1.45 < spread.max() < 1.48


def test_the_code_decays_after_the_first_step_already():
    start = rows([1, 0], [0, 1])
    code, here = (
        geometry.align(start, momentum=0.0, decay=0.5, steps=2, stop=stop, tol=0.0).vectors  # type: ignore[arg-type]
        for stop in ("code", "tangential")
    )
    first = geometry.align(start, steps=1).vectors
    force = geometry.forces(first)
    torch.testing.assert_close(code, F.normalize(first + 0.05 * force, dim=1))
    torch.testing.assert_close(here, F.normalize(first + 0.1 * force, dim=1))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-9), (torch.float32, 2e-5)])
@pytest.mark.parametrize("crowd", [0.0, 1.0, 5.0])
@pytest.mark.parametrize(("classes", "dim"), [(2, 9), (5, 40), (30, 7)])
def test_alignment_is_heavy_ball_down_the_energy(
    classes: int, dim: int, crowd: float, dtype: torch.dtype, close: float
):
    """With few rows in many dimensions, with many in few, with close ones and without."""
    start = F.normalize(directions(classes, dim) + crowd / dim**0.5, dim=1).to(dtype)
    x, velocity = start.double(), 0.0
    for _ in range(8):
        x.requires_grad_()
        (slope,) = torch.autograd.grad(-distances(x).log().sum(), x)
        velocity = 0.9 * velocity - 0.01 * slope
        x = F.normalize(x.detach() + velocity, dim=1)
    found = geometry.align(start, lr=0.01, steps=8, tol=0.0).vectors
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), x, rtol=close, atol=close)


def test_close_rows_in_many_dimensions_part_as_they_would_in_two():
    """One step of momentum 0 at a distance of 0.0001: each is pushed by 10,000, so by lr 1e-9 moved by 0.00001."""
    start = torch.zeros(2, 50)
    start[:, 0] = 1.0
    start[1, 1] = 1e-4
    turned = start @ torch.linalg.qr(directions(50, 50))[0].float()
    for x in (start, turned):
        found = geometry.align(x, lr=1e-9, steps=1, momentum=0.0)
        assert (found.vectors[0] - found.vectors[1]).norm().item() == pytest.approx(1.2e-4, rel=2e-2)


def test_what_is_at_rest_stays():
    found = geometry.align(geometry.simplex(5, 8))
    assert found.steps == 0 and torch.equal(found.vectors, F.normalize(geometry.simplex(5, 8), dim=1))
    assert geometry.align(rows([3, 4])).vectors.tolist() == [[0.6, 0.8]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_at_one_point_part_always_in_the_same_way(dtype: torch.dtype):
    same = torch.ones(4, 5, dtype=dtype)
    same[3] = torch.tensor([1, 0, 0, 0, 0], dtype=dtype)
    a, b = geometry.align(same), geometry.align(same)
    assert torch.equal(a.vectors, b.vectors)
    assert a.energy == pytest.approx(-2.942488, abs=1e-5)


def test_opposite_and_many_equal_rows_give_no_nan():
    for start in (rows([1, 0], [-1, 0]), torch.ones(30, 4), torch.ones(3, 1), torch.tensor([[1.0, 0.0], [1.0, 1e-20]])):
        found = geometry.align(start, steps=60)
        assert torch.isfinite(found.vectors).all()
        torch.testing.assert_close(found.vectors.norm(dim=1), torch.ones(len(start), dtype=start.dtype))


# The other solvers


@pytest.mark.parametrize(("classes", "dim"), [(1, 3), (2, 2), (5, 4), (10, 64), (50, 64), (100, 512)])
def test_the_exact_solver_gives_a_simplex_in_one_step(classes: int, dim: int):
    found = geometry.align(directions(classes, dim), solver="exact")
    cosines = found.vectors @ found.vectors.T
    expected = torch.full_like(cosines, -1 / max(1, classes - 1)).fill_diagonal_(1.0)
    assert found.steps == 1 and torch.allclose(cosines, expected, atol=1e-9) and found.residual < 1e-9


@given(st.integers(2, 8), st.integers(0, 5), st.integers(0, 99))
@settings(max_examples=30)
def test_no_other_simplex_is_nearer_than_the_exact_one(classes: int, more: int, seed: int):
    start = directions(classes, classes - 1 + more, seed)
    found = geometry.align(start, solver="exact").vectors
    turned = found @ rotation(start.shape[1], seed + 1)
    assert (found - start).square().sum() <= (turned - start).square().sum() + 1e-9


def test_the_exact_solver_leaves_a_simplex_where_it_is_and_turns_with_space():
    best = geometry.simplex(6, 9, torch.float64) @ rotation(9)
    assert torch.allclose(geometry.align(best, solver="exact").vectors, best, atol=1e-9)
    start, turn = directions(6, 9), rotation(9, 5)
    one, other = (geometry.align(x, solver="exact").vectors for x in (start, start @ turn))
    assert torch.allclose(one @ turn, other, atol=1e-9)


def test_the_exact_solver_parts_rows_at_one_point_and_needs_room():
    found = geometry.align(rows([1, 0, 0], [1, 0, 0], [0, 1, 0]), solver="exact").vectors
    assert torch.allclose(found @ found.T, torch.full((3, 3), -0.5, dtype=torch.float64).fill_diagonal_(1), atol=1e-9)
    with pytest.raises(ValueError, match="5 classes cannot all be equally far apart in 3 dimensions"):
        geometry.align(directions(5, 3), solver="exact")


@pytest.mark.parametrize(("classes", "dim"), [(12, 3), (24, 8), *by_night((60, 16))])
def test_lbfgs_ends_lower_than_the_iteration(classes: int, dim: int):
    start = directions(classes, dim)
    lower, paper = geometry.align(start, solver="lbfgs", tol=1e-7), geometry.align(start, tol=0)
    assert lower.energy < paper.energy and lower.residual < paper.residual
    assert torch.allclose(torch.linalg.vector_norm(lower.vectors, dim=1), torch.ones(classes, dtype=torch.float64))


def test_lbfgs_finds_the_icosahedron():
    cosines = (found := geometry.align(directions(12, 3), solver="lbfgs", tol=1e-9).vectors) @ found.T
    nearest = cosines.fill_diagonal_(-1).amax(1)
    assert torch.allclose(nearest, torch.full_like(nearest, 1 / math.sqrt(5)), atol=1e-4)


def test_lbfgs_leaves_what_is_at_rest():
    best = geometry.simplex(5, 8, torch.float64)
    assert geometry.align(best, solver="lbfgs").energy == pytest.approx(geometry.energy(best), abs=1e-9)


def test_a_row_without_direction_is_refused_by_name():
    with pytest.raises(ValueError, match=r"row 1 has no direction: its length is 0\.0"):
        geometry.align(rows([1, 0], [0, 0]))
    with pytest.raises(ValueError, match="row 0 has no direction"):
        geometry.align(rows([math.nan, 0], [1, 0]))


# Refinement


def at_60_degrees() -> Tensor:
    return rows([1, 0], [0.5, math.sqrt(0.75)])


@pytest.mark.parametrize("pairs", ["dense", "sparse"])
def test_two_classes_at_60_degrees_are_pushed_apart(pairs: Any):
    p = at_60_degrees()
    one, five = (geometry.refine(p, sent(p), weight=0.5, margin=0.3, steps=t, pairs=pairs) for t in (1, 5))
    assert (one[0] @ one[1]).item() == pytest.approx(0.484926131, abs=1e-9)
    assert (five[0] @ five[1]).item() == pytest.approx(0.292662718, abs=1e-9)
    assert five[0].tolist() == pytest.approx([0.993589069, -0.113052028], abs=1e-9)
    assert five[1].tolist() == pytest.approx([0.398888606, 0.916999389], abs=1e-9)


def test_the_slope_at_the_start():
    """Agreement has none there; separation pushes by (0, 0.866) and (0.75, -0.433), lr 0.01."""
    p = at_60_degrees()
    moved = geometry.refine(p, sent(p), weight=0.5, margin=0.3, steps=1)
    slope = rows([0, 0.866025404], [0.75, -0.433012702])
    torch.testing.assert_close(moved, F.normalize(p - 0.01 * slope, dim=1), atol=1e-9, rtol=0)
    torch.testing.assert_close((slope * p).sum(1), torch.zeros(2).double(), atol=1e-9, rtol=0)


def by_autograd(start: Tensor, uploads: list[Prototypes], *, weight: float, margin: float, steps: int) -> Tensor:
    """Eq. 4 to 6 as printed, by torch's own SGD."""
    point = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([point], lr=0.01, momentum=0.9)
    off = ~torch.eye(len(start), dtype=torch.bool)
    for _ in range(steps):
        u = F.normalize(point, dim=1)
        agree = sum(((1 - (p.vectors * u).sum(1)) * p.present).sum() for p in uploads)
        separate = (u @ u.T - margin).clamp(min=0)[off].sum()
        optimizer.zero_grad()
        (agree + weight * separate).backward()
        optimizer.step()
    return F.normalize(point.detach(), dim=1)


@few
@shapes
def test_refinement_is_gradient_descent_on_the_printed_loss(classes: int, dim: int, seed: int):
    start = 2 * directions(classes, dim, seed)
    some = directions(classes, dim, seed + 1) * (torch.arange(classes) % 2).unsqueeze(1)
    uploads = sent(directions(classes, dim, seed + 2), some)
    expected = by_autograd(start, uploads, weight=0.5, margin=0.2, steps=6)
    for pairs in ("dense", "sparse"):
        found = geometry.refine(start, uploads, weight=0.5, margin=0.2, steps=6, pairs=pairs)  # type: ignore[arg-type]
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


def test_sparse_is_dense_over_many_steps_in_which_pairs_come_and_go():
    start = directions(60, 6)
    uploads = sent(start)
    dense, sparse = (
        geometry.refine(start, uploads, weight=0.3, margin=0.7, steps=40, pairs=pairs)  # type: ignore[arg-type]
        for pairs in ("dense", "sparse")
    )
    assert not torch.allclose(dense, start, atol=0.1)
    torch.testing.assert_close(sparse, dense, atol=1e-9, rtol=0)


def test_neighbours_are_looked_for_again_only_where_rows_moved():
    u = directions(60, 6)
    near = row_pairs.Neighbours(u, margin=0.7)
    near.push(u)
    before, looked = near.looked_at.clone(), near.pairs
    near.push(F.normalize(u + 1e-4, dim=1))
    assert near.pairs is looked
    u[5] = -u[5]
    torch.testing.assert_close(near.push(u), row_pairs.push_above(u, 0.7))
    assert (near.looked_at != before).any(1).nonzero().flatten().tolist() == [5]


def test_without_separation_or_where_all_is_far_apart_nothing_moves():
    parts = [directions(5, 8, 1), directions(5, 8, 2)]
    mean = F.normalize(parts[0] + parts[1], dim=1)
    for weight, margin in ((0.0, -1.0), (0.5, 0.99)):
        for steps in (0, 1, 50):
            found = geometry.refine(mean, sent(*parts), weight=weight, margin=margin, steps=steps)
            torch.testing.assert_close(found, mean)


def test_an_absent_class_stays_absent_and_pushes_nobody():
    p = torch.cat([at_60_degrees(), rows([0, 0])])
    for pairs in ("dense", "sparse"):
        found = geometry.refine(p, sent(p), weight=0.5, margin=-0.5, steps=5, pairs=pairs)  # type: ignore[arg-type]
        two = geometry.refine(p[:2], sent(p[:2]), weight=0.5, margin=-0.5, steps=5)
        torch.testing.assert_close(found[:2], two)
        assert found[2].tolist() == [0, 0]


def test_equal_prototypes_give_no_nan_and_do_not_part():
    """Their slopes are radial: separation has no side to push them to."""
    p = rows([0.6, 0.8], [0.6, 0.8])
    torch.testing.assert_close(geometry.refine(p, sent(p), weight=0.5, margin=0.3, steps=5), p)


# Symmetry

WORKS: list[Callable[[Tensor], Tensor]] = [
    geometry.margins,
    geometry.forces,
    lambda x: geometry.align(x, steps=4).vectors,
    lambda x: geometry.refine(x, sent(x), weight=0.5, margin=0.2, steps=3),
]


@few
@shapes
def test_the_order_of_classes_does_not_matter(classes: int, dim: int, seed: int):
    x, order = directions(classes, dim, seed), torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    for work in WORKS:
        torch.testing.assert_close(work(x[order]), work(x)[order], atol=1e-6, rtol=1e-6)
    assert geometry.energy(x[order]) == pytest.approx(geometry.energy(x))


@few
@shapes
def test_turning_space_turns_what_is_found(classes: int, dim: int, seed: int):
    x, turn = directions(classes, dim, seed), rotation(dim, seed)
    for work in WORKS:
        found, turned = work(x), work(x @ turn)
        torch.testing.assert_close(turned, found @ turn if found.ndim == 2 else found, atol=1e-6, rtol=1e-6)
    assert geometry.energy(x @ turn) == pytest.approx(geometry.energy(x))
