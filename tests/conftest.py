"""Tests run side by side; each keeps to one core, and draws the same whichever tests ran before it."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from itertools import chain
from random import Random

import pytest
import times
import wanted
from typed import typed

__all__ = ["typed"]  # a fixture


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--measure", action="store_true", help="write tests/times.json; with -n auto")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Give ``-n auto`` one worker more than there are cores: a quarter of the time tests wait for other processes."""
    return (os.cpu_count() or 1) + 1


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Prepare a process that runs tests; with ``-n`` there is one more, which hands them out and never needs torch."""
    gc.disable()  # until all tests are known: what is imported stays
    import torch

    torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker read the files in an order of its own: in a fresh clone, each then compiles a part of them."""
    report = yield
    if isinstance(collector, pytest.Directory) and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
        Random(worker).shuffle(report.result)
    return report


def pytest_runtest_setup(item: pytest.Item) -> None:
    import torch

    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process, unless they name another group; begin with the longest groups."""
    seconds = times.known()
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    items.sort(key=lambda item: (-seconds.get(group_of(item), 0.0), item.path))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leave what was imported out of all garbage collection; refuse a pytest so new that xdist ignores the groups."""
    import hypothesis  # noqa: F401  now, since it asks the collector of garbage who holds what it finds

    gc.freeze()
    gc.enable()
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
