"""Courses over rounds, from the table of results: after how many rounds a method reaches an accuracy.

Rounds count as they were evaluated: every 25th of 300, so a number here is at most that much too large.
"""

from __future__ import annotations

from collections.abc import Sequence

from protea.runs.spread import Spread
from protea.studies.leaderboard import Board, Entry

Course = Sequence[tuple[int, float]]  # rounds that were evaluated, in order, each with an accuracy


def entry(board: Board, method: str) -> Entry | None:
    """Find a method in a setting: by its name and the fields named, with those that were chosen for it there."""
    if method == "local":
        return board.local
    name, *fields = method.split()
    found = [
        each
        for each in board.entries
        if (words := each.method.split())[0] == name and words[-1] != "alone" and set(fields) <= set(words)
    ]
    return min(found, key=lambda each: len(each.method.split()), default=None)  # nothing else was changed


def reached(course: Course, target: float) -> int | None:
    """Return the first evaluated round with at least that accuracy; None where there is none.

    >>> reached([(25, 70.0), (50, 81.5), (75, 80.0)], 80.0), reached([(25, 70.0)], 80.0)
    (50, None)
    """
    return next((round for round, value in course if value >= target), None)


def targets(board: Board, method: str) -> dict[int, float]:
    """Return the best accuracy of a method over its evaluated rounds, for each seed that has several of them."""
    found = entry(board, method)
    courses = {} if found is None else found.courses("own")
    return {seed: max(value for _, value in course) for seed, course in courses.items() if len(course) > 1}


def rounds_until(found: Entry, goals: dict[int, float]) -> tuple[list[int], int]:
    """Return the rounds until each seed's target, of the seeds that reach it, and how many seeds were asked."""
    courses = {seed: course for seed, course in found.courses("own").items() if seed in goals}
    rounds = [reached(course, goals[seed]) for seed, course in courses.items()]
    return [each for each in rounds if each is not None], len(rounds)


def rounds_saved(board: Board, one: str, other: str) -> dict[int, float]:
    """Return for each seed how many rounds sooner a method has what another has at its best.

    One that never has it counts as if it had it one evaluation after its last: the least that it can have needed.
    """
    found, goals = entry(board, one), targets(board, other)
    second = entry(board, other)
    if found is None or second is None:
        return {}
    courses, others = found.courses("own"), second.courses("own")
    saved = {}
    for seed in sorted(set(courses) & set(others) & set(goals)):
        best = reached(others[seed], goals[seed])
        assert best is not None  # a maximum is reached
        saved[seed] = float(best - (reached(courses[seed], goals[seed]) or beyond(courses[seed])))
    return saved


def beyond(course: Course) -> int:
    """Return the round of the evaluation that would come next.

    >>> beyond([(25, 70.0), (50, 81.5)]), beyond([(10, 70.0)])
    (75, 20)
    """
    (first, _), (last, _) = ([(0, 0.0), *course])[-2:]
    return 2 * last - first


def table_of_rounds(board: Board, asked: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Lay out, for each method, the rounds until it has what each of the methods asked for has at its best."""
    goals = {name: found for name in asked if (found := targets(board, name))}
    rows = []
    for each in board.entries:
        if each.method.endswith(" alone") or not goals:
            continue
        cells = [rounds_in_words(*rounds_until(each, found)) for found in goals.values()]
        if any(cell != "-" for cell in cells):
            rows.append([each.method, *cells])
    means = [f"{Spread.of(list(found.values())).mean:.1f} %" for found in goals.values()]
    return ["method", *(f"{name}'s best ({mean})" for name, mean in zip(goals, means, strict=True))], rows


def rounds_in_words(rounds: Sequence[int], asked: int) -> str:
    """Format the mean of some rounds, and how many seeds have one.

    >>> rounds_in_words([25, 75], 3), rounds_in_words([25, 75], 2), rounds_in_words([], 2), rounds_in_words([], 0)
    ('50 (2 of 3 seeds)', '50', 'never', '-')
    """
    if not asked:
        return "-"
    if not rounds:
        return "never"
    some = "" if len(rounds) == asked else f" ({len(rounds)} of {asked} seeds)"
    return f"{sum(rounds) / len(rounds):.0f}{some}"
