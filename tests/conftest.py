"""Tests run side by side; each keeps to one core, and draws the same whichever tests ran before it."""

from __future__ import annotations

from itertools import chain

import pytest
import times
import torch
import wanted
from typed import typed

__all__ = ["typed"]  # a fixture

torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measure", action="store_true", help="write tests/times.json; with -n auto")


def pytest_runtest_setup(item: pytest.Item) -> None:
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process, unless they name another group; begin with the longest groups."""
    seconds = times.known()
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: -seconds.get(group_of(item), 0.0))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to run slowly: a pytest that is too new for xdist ignores the groups."""
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("pytest-xdist cannot group tests with this pytest.  Install what constraints.txt says.")


def group_of(item: pytest.Item) -> str:
    marker = item.get_closest_marker("xdist_group")
    assert marker is not None
    return str(marker.args[0])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was lacking, and with ``--measure`` how long each folder took."""
    lines = wanted.summary(terminalreporter.stats.get("skipped", []))
    if config.getoption("measure"):
        lines += times.measure(chain.from_iterable(terminalreporter.stats.values()))
    for line in lines:
        terminalreporter.write_line(line)
