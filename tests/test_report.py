"""The report: what it reads from runs, and the page in a real browser."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import protea
from protea import Data, Experiment, Result
from protea.cli import app
from protea.data.sources.digits import Digits
from protea.engines import EngineSettings
from protea.errors import ConfigError
from protea.evaluation import Evaluation
from protea.methods.local import Local
from protea.models import Models
from protea.report import content as contents
from protea.report import groups, plots, space
from protea.report.content import content, read
from protea.report.html import embedded, page
from protea.runs.past import Past
from protea.training import Training

SMALL = Experiment(
    rounds=3,
    clients=4,
    data=Data(source=Digits(), samples=400),
    models=Models(family="tiny5", dim=16),
    training=Training(batch=20, lr=0.05),
    engine=EngineSettings("inline"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def first(folder: Path) -> Result:
    return protea.run(SMALL, folder / "first")


@pytest.fixture(scope="module")
def second(folder: Path) -> Result:
    return protea.run(replace(SMALL, seed=2), folder / "second")


@pytest.fixture(scope="module")
def alone(folder: Path) -> Result:
    """Another method, another protocol, no snapshots."""
    settings = Evaluation(snapshots=0, protocol="best")
    return protea.run(replace(SMALL, method=Local(), evaluation=settings), folder / "alone")


@pytest.fixture(scope="module")
def one(first: Result) -> dict[str, Any]:
    return content([Past.read(first.directory)])


@pytest.fixture(scope="module")
def three(first: Result, second: Result, alone: Result) -> dict[str, Any]:
    return content([Past.read(run.directory) for run in (first, second, alone)])


@pytest.fixture(scope="module")
def going(first: Result, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a run that is in its third round."""
    return content(read([stopped(first.directory, tmp_path_factory.mktemp("runs") / "going", 1 + 2 * 5)]))


@pytest.fixture(scope="module")
def young(first: Result, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a run that has written nothing but its settings."""
    path = stopped(first.directory, tmp_path_factory.mktemp("runs") / "young", 0)
    for name in ("prototypes", "checkpoints"):
        shutil.rmtree(path / name)
    (path / "partition.json").unlink()
    return content(read([path]))


def stopped(source: Path, target: Path, lines: int) -> Path:
    """The run as it was when its metrics had so many lines."""
    shutil.copytree(source, target)
    (target / "summary.json").unlink()
    kept = (target / "metrics.jsonl").read_text().splitlines(keepends=True)[:lines]
    (target / "metrics.jsonl").write_text("".join(kept))
    return target


# What is read


def test_the_course_of_a_run_is_that_of_its_records(first: Result, one: dict[str, Any]) -> None:
    run = one["runs"][0]
    assert run["rounds"] == [1, 2, 3] and run["name"] == "first" and run["planned"] == 3
    for part in ("test", "validation"):
        for rule in first.records[0].test:
            expected = [getattr(record, part)[rule].weighted for record in first.records]
            assert run["scores"][part][rule]["weighted"] == pytest.approx(expected, rel=1e-4)
    assert run["bytes"] == [record.bytes_up + record.bytes_down for record in first.records]
    assert run["majority"] == first.summary["majority"]
    line = first.records[1].clients[2]
    drawn = run["details"]["accuracies"]["test"]["head"][2][1]
    assert drawn == pytest.approx(line["test/head"] / line["test/samples"], rel=1e-4)


def test_accuracy_by_class_is_hits_of_samples_and_nothing_where_there_are_none() -> None:
    assert contents.by_class({"hits": [1, 0, 0], "samples": [4, 2, 0], "answers": [3, 3, 0]}) == [0.25, 0.0, None]
    assert contents.by_class({}) is None


def test_a_run_that_goes_on_is_read_and_knows_the_majority_class(first: Result, going: dict[str, Any]) -> None:
    assert going["runs"][0]["rounds"] == [1, 2] and going["runs"][0]["summary"] is None
    assert going["runs"][0]["majority"] == pytest.approx(first.summary["majority"])
    assert going["notices"][0]["text"].startswith("going has not ended: round 2 of 3.")


def test_a_run_without_any_line_is_read(young: dict[str, Any]) -> None:
    assert young["runs"][0]["rounds"] == [] and young["runs"][0]["details"]["clients"] == []


def test_equal_runs_give_equal_reports(first: Result, one: dict[str, Any]) -> None:
    assert page(content([Past.read(first.directory)])) == page(one)


# Groups and differences


def test_seeds_of_one_experiment_are_one_group(first: Result, second: Result, alone: Result) -> None:
    found = groups.of([Past.read(run.directory) for run in (first, alone, second)])
    assert found == [{"label": "fedproto", "runs": [0, 2]}, {"label": "local", "runs": [1]}]


def past(name: str, seed: int = 1, summary: Any = None, **settings: Any) -> Past:
    config = {"seed": seed, "rounds": 3, "method": {"name": "fedproto", "pull": 1.0}, **settings}
    return Past(Path(name), config, {"classes": [], "clients": []}, [], [], summary)


def test_a_label_names_what_sets_a_group_apart_from_others_of_its_method() -> None:
    strong = past("b", method={"name": "fedproto", "pull": 5.0})
    assert [group["label"] for group in groups.of([past("a"), strong, past("c", seed=2)])] == [
        "fedproto method.pull=1.0",
        "fedproto method.pull=5.0",
    ]
    far = past("far", rounds=9, fraction=0.5, clients=7, method={"name": "fedproto", "pull": 5.0})
    assert [group["label"] for group in groups.of([past("a", fraction=1.0, clients=4), far])] == [
        "fedproto (a)",
        "fedproto (far)",
    ]


def test_what_differs_besides_method_and_seed_is_said(first: Result, second: Result, alone: Result) -> None:
    assert groups.differences([past("a"), past("b", seed=2, method={"name": "local"}, engine={"name": "ray"})]) == []
    top, notice = groups.differences([past("a"), past("b", rounds=9), past("c", seed=2)])
    assert top["text"] == "These runs differ in more than method and seed: their numbers may not compare."
    assert notice["text"] == "The runs differ in rounds: 3 (a, c); 9 (b)."
    final = {"method": "fedproto", "made": {"protocol": "final"}}
    assert groups.differences([past("a", summary=final), past("b")]) == []  # b has not ended
    texts = [each["text"] for each in groups.differences([Past.read(run.directory) for run in (first, alone)])]
    assert "The runs differ in evaluation.protocol: validation (first); best (alone)." in " ".join(texts)
    assert "The runs differ in protocol used: validation (first); best (alone)." in " ".join(texts)


def test_another_split_of_the_same_seed_is_said(first: Result, tmp_path: Path) -> None:
    shutil.copytree(first.directory, tmp_path / "moved")
    table = json.loads((tmp_path / "moved" / "partition.json").read_text())
    table["clients"][0], table["clients"][1] = table["clients"][1], table["clients"][0]
    (tmp_path / "moved" / "partition.json").write_text(json.dumps(table))
    _, notice = groups.differences([Past.read(first.directory), Past.read(tmp_path / "moved")])
    assert notice["text"].startswith("Runs of seed 1 have different samples at their clients: split ")


def test_runs_of_one_name_are_told_apart_by_the_folders_above() -> None:
    assert groups.names([past("x/a/run"), past("x/b/run")]) == ["a/run", "b/run"]
    assert groups.names([past("x/a"), past("x/a")]) == ["a", "a"]


# Prototypes


def test_rows_of_vectors_are_those_of_present_classes() -> None:
    named = {"global.vectors": np.array([[3.0, 4.0], [0.0, 2.0]], np.float16), "global.counts": np.array([5.0, 0, 1])}
    owners, labels, vectors = space.some(named, "global", space.GLOBAL)
    assert owners == [-1, -1] and labels == [0, 2] and vectors.tolist() == [[3, 4], [0, 2]]
    assert space.cosines(named) == {"classes": [0, 2], "rows": [[1.0, 0.8], [0.8, 1.0]]}


def test_a_vector_beyond_half_precision_is_left_out() -> None:
    named = {"0.prototypes.vectors": np.array([[np.inf], [2]], np.float16), "0.prototypes.counts": np.ones(2)}
    assert space.prototypes(named)[:2] == ([0], [1])


def test_pca_of_points_on_a_line_is_that_line() -> None:
    maps, shares = space.project(np.array([[0, 0, 5], [3, 4, 5], [6, 8, 5]], np.float32))
    assert np.abs(maps["pca"]).round(4).tolist() == [[1, 0], [0, 0], [1, 0]] and shares == [1.0, 0.0]
    assert "tsne" not in maps


def test_prototypes_at_one_point_have_a_map_too() -> None:
    maps, _ = space.project(np.ones((20, 8), np.float32))
    assert maps["pca"].tolist() == [[0, 0]] * 20


def test_all_snapshots_lie_on_one_map(first: Result, one: dict[str, Any]) -> None:
    found = one["runs"][0]["details"]["space"]
    assert found["rounds"] == [1, 2, 3] and found["all"] == 3
    owned = sum(sum(count > 0 for count in client["train"]) for client in one["runs"][0]["details"]["clients"])
    for frame in found["prototypes"]["frames"]:
        assert sum(owner >= 0 for owner in frame["owner"]) == owned
        assert len(frame["pca"]) == len(frame["tsne"]) == 2 * len(frame["owner"])
    every = [value for frame in found["prototypes"]["frames"] for value in frame["pca"]]
    assert max(map(abs, every)) == 1.0
    assert {-2, -1, 0} == set(found["features"]["frames"][-1]["owner"])


def test_too_many_points_leave_snapshots_out_but_never_the_last(first: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Path(first.directory, "prototypes").glob("*.safetensors")
    snapshots = {int(path.stem): path for path in paths}
    points = len(space.prototypes(space.load_file(snapshots[3]))[0])
    monkeypatch.setattr(space, "MOST", 2 * points + 1)
    assert list(space.thinned(snapshots)) == [2, 3]
    monkeypatch.setattr(space, "MOST", 1)
    assert list(space.thinned(snapshots)) == [3]


# The page


def test_no_name_can_end_the_element_it_is_embedded_in() -> None:
    name = "</script><script>x()</script><!-- & \u2028"
    text = embedded({"title": name})
    assert json.loads(text) == {"title": name}
    assert not set("<>&\u2028") & set(text)


def test_the_page_refers_to_nothing_outside(one: dict[str, Any]) -> None:
    text = page(one)
    assert "default-src 'none'" in text
    assert [word for word in ("src=", "@import", "url(", "innerHTML", "eval(") if word in text] == []
    assert text.count("http://") == text.count("http://www.w3.org/2000/svg") == 1 and "https://" not in text


def test_the_report_knows_run_directories_and_no_torch() -> None:
    for path in Path(contents.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name.split(".")[0] != "torch", path
                assert not name.startswith("protea.") or name.startswith(
                    ("protea.report", "protea.runs.past", "protea.runs.store", "protea.errors")
                ), (path, name)


# The command


def test_the_command_writes_the_page_into_the_run(first: Result, tmp_path: Path) -> None:
    shutil.copytree(first.directory, tmp_path / "run")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run" / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_command_says_what_is_wrong(first: Result, tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(found.exception, ConfigError) and "holds no run" in str(found.exception)
    found = CliRunner().invoke(app, ["report", str(first.directory), "--out", str(tmp_path / "no" / "r.html")])
    assert isinstance(found.exception, ConfigError) and "Make it first" in str(found.exception)


def test_figures_without_matplotlib_say_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'protea\[plots\]'"):
        plots.require()


def test_every_figure_is_written_for_papers(one: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = plots.draw(one, tmp_path, "svg")
    assert {path.stem.removeprefix("first-") for path in found} == {*plots.ACROSS, *plots.SINGLE}
    assert sorted(tmp_path.iterdir()) == sorted(found)


@pytest.mark.parametrize(("form", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_figures_are_written_in_every_format(
    one: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, start: bytes
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(plots, "SINGLE", {"time": plots.time})  # drawing all thirteen three times is slow
    found = plots.draw(one, tmp_path, form)
    assert [path.name for path in found] == [f"{name}.{form}" for name in ("accuracy", "communication", "first-time")]
    drawn = [path.read_bytes() for path in found]
    assert all(each.startswith(start) for each in drawn)
    assert [path.read_bytes() for path in plots.draw(one, tmp_path / "again", form)] == drawn


def test_a_run_that_has_only_begun_has_no_figures(young: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert plots.draw(young, tmp_path, "svg") == []


def test_figures_draw_mean_and_deviation_over_seeds(first: Result, second: Result, three: dict[str, Any]) -> None:
    rounds, middle, spread = plots.over_seeds(three, three["groups"][0])
    a, b = (100 * run.records[1].accuracy for run in (first, second))
    assert rounds == [1, 2, 3]
    assert middle[1] == pytest.approx((a + b) / 2, rel=1e-3)
    assert spread[1] == pytest.approx(abs(a - b) / 2**0.5, abs=0.01)  # of two values


def test_the_command_writes_figures_of_a_run_without_snapshots(alone: Result, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ["--out", str(tmp_path / "r.html"), "--figures", str(tmp_path / "figures"), "--format", "pdf"]
    result = CliRunner().invoke(app, ["report", str(alone.directory), *options])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "r.html").stat().st_size < 1_000_000
    found = {path.stem for path in (tmp_path / "figures").glob("*.pdf")}
    assert "alone-margins" in found and not {"alone-cosines", "alone-map-pca", "alone-features-tsne"} & found


# In a browser

Open = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    from selenium.webdriver.chrome.service import Service

    chromium = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("Chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for name in (
        "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "window-size=1200,900",
        f"user-data-dir={tmp_path_factory.mktemp('browser')}",
    ):  # fmt: skip
        options.add_argument(f"--{name}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    yield found
    found.quit()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Open:
    """Opens the page of some content, and expects that nothing is complained of and nothing asked for."""

    def open(found: dict[str, Any]) -> Any:
        path = tmp_path / "report.html"
        path.write_text(page(found), encoding="utf-8")
        browser.get(path.as_uri())
        assert browser.get_log("browser") == []
        assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
        return browser

    return open


def choose(browser: Any, control: str, value: str) -> None:
    from selenium.webdriver.support.select import Select

    Select(browser.find_element("id", control)).select_by_value(value)


def all_of(browser: Any, css: str) -> list[Any]:
    found: list[Any] = browser.find_elements("css selector", css)
    return found


def numbers(browser: Any, figure: str) -> list[list[str]]:
    """The table of a figure's numbers."""
    script = """
        const data = document.querySelector(`#${arguments[0]} details.data`);
        data.open = true;
        fill(FIGURES.find((figure) => figure.id === arguments[0]));
        return [...data.querySelectorAll("tr")].map((row) => [...row.children].map((cell) => cell.textContent));
    """
    table: list[list[str]] = browser.execute_script(script, figure)
    return table


def test_every_figure_is_drawn_and_says_what_it_shows(opened: Open, one: dict[str, Any]) -> None:
    page = opened(one)
    drawn = {
        "accuracy", "by-class", "calibration", "distribution", "map", "features", "cosines", "margins", "distances",
        "communication", "time",
    }  # fmt: skip
    for figure in drawn:
        (picture,) = all_of(page, f"#{figure} svg[role=img]")
        assert len(picture.get_attribute("aria-label")) > 30 and picture.size["height"] > 150
    for figure in ("protocols", "shared", "models", "settings", "environment"):
        assert len(all_of(page, f"#{figure} tbody tr")) >= 3
    assert not all_of(page, "#comparison") and not all_of(page, ".missing")
    twice = "const ids = [...document.querySelectorAll('[id]')].map((e) => e.id); return ids.length - new Set(ids).size"
    assert page.execute_script(twice) == 0


def test_curves_have_a_point_for_each_round_and_the_numbers_of_the_records(
    opened: Open, first: Result, one: dict[str, Any]
) -> None:
    page = opened(one)
    assert [s.get_attribute("data-name") for s in all_of(page, "#accuracy .series")] == [
        "client 0", "client 1", "client 2", "client 3", "all clients",
    ]  # fmt: skip
    assert len(all_of(page, "#accuracy .series circle")) == 5 * 3
    assert len(all_of(page, "#accuracy .guide")) == 2  # in the plot and in its legend
    accuracies = [f"{100 * record.accuracy:.1f}" for record in first.records]
    assert [row[-1] for row in numbers(page, "accuracy")[1:]] == accuracies
    choose(page, "accuracy-view", "rules")
    choose(page, "accuracy-part", "validation")
    head = [f"{100 * record.validation['head'].weighted:.1f}" for record in first.records]
    table = numbers(page, "accuracy")
    assert [row[table[0].index("classifier")] for row in table[1:]] == head
    assert len(all_of(page, "#accuracy .series circle")) == 3 * len(first.records[0].validation)


def test_the_slider_moves_the_map_by_keyboard_and_takes_the_others_along(opened: Open, one: dict[str, Any]) -> None:
    page = opened(one)
    choose(page, "map-zoom", "all")
    frames = one["runs"][0]["details"]["space"]["prototypes"]["frames"]

    def places() -> list[str]:
        return [point.get_attribute("transform") for point in all_of(page, "#map .map .point")]

    last = places()
    assert len(last) == len(frames[2]["owner"])
    page.find_element("id", "map-frame").send_keys("\ue012")  # arrow left
    assert places() != last and len(places()) == len(frames[1]["owner"])
    said = {page.find_element("css selector", f"#{f} output").text for f in ("map", "features", "cosines")}
    assert said == {"round 2"}
    before = places()
    choose(page, "map-map", "tsne")
    assert places() != before
    label = page.find_element("css selector", "#map svg[role=img]").get_attribute("aria-label")
    assert label.startswith("t-SNE map after round 2: ")


def test_the_page_may_fetch_nothing(opened: Open, one: dict[str, Any]) -> None:
    page = opened(one)
    ask = "return fetch('data:,x').then(() => 'fetched', () => 'refused')"
    assert page.execute_script(ask) == "refused"
    page.get_log("browser")  # the browser says so there


def test_names_of_users_are_shown_as_they_are(opened: Open, one: dict[str, Any]) -> None:
    name = "</script><img src=x onerror=document.title='bad'>"
    classes = [name, *one["runs"][0]["details"]["classes"][1:]]
    run = {**one["runs"][0], "details": {**one["runs"][0]["details"], "classes": classes}}
    page = opened({**one, "title": name, "runs": [run]})
    assert page.find_element("id", "title").text == name
    assert page.title == f"Protea report: {name}" and not all_of(page, "main img")


def test_several_runs_are_compared_with_mean_and_band(
    opened: Open, first: Result, second: Result, three: dict[str, Any]
) -> None:
    page = opened(three)
    notices = [notice.text for notice in all_of(page, ".notice")]
    assert notices[0].startswith("These runs differ") and "in evaluation.protocol" in notices[1]
    middle, spread = 50 * (first.accuracy + second.accuracy), 100 * abs(first.accuracy - second.accuracy) / 2**0.5
    assert all_of(page, ".tiles b")[0].text == f"{middle:.1f} ± {spread:.1f} %"
    assert len(all_of(page, "#comparison .dot")) == 3
    assert [s.get_attribute("data-name") for s in all_of(page, "#accuracy .series")] == ["fedproto (2 seeds)", "local"]
    assert len(all_of(page, "#accuracy .band")) == 1
    shown = float(numbers(page, "accuracy")[2][1])
    assert shown == pytest.approx(50 * (first.records[1].accuracy + second.records[1].accuracy), abs=0.06)
    choose(page, "map-run", "2")
    assert "kept no snapshots" in page.find_element("css selector", "#map .missing").text
    assert all_of(page, "#margins svg[role=img]") and "no global" in page.find_element("css selector", "#margins").text


def test_a_run_that_goes_on_says_so_on_top(
    opened: Open, first: Result, going: dict[str, Any], young: dict[str, Any]
) -> None:
    page = opened(going)
    assert page.find_element("css selector", ".notice").text.startswith("going has not ended: round 2 of 3.")
    assert len(all_of(page, "#accuracy .series circle")) == 5 * 2
    assert f"{100 * first.records[1].accuracy:.1f} %" in page.find_element("css selector", ".tiles").text
    page = opened(young)
    assert len(all_of(page, ".missing")) > 5


def test_colours_follow_the_system_and_the_switch(opened: Open, one: dict[str, Any]) -> None:
    page = opened(one)
    paper = "return getComputedStyle(document.body).backgroundColor"
    white, dark = "rgb(255, 255, 255)", "rgb(20, 24, 29)"
    for system, expected in (("light", white), ("dark", dark)):
        wish = {"features": [{"name": "prefers-color-scheme", "value": system}]}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", wish)
        assert page.execute_script(paper) == expected
    choose(page, "theme", "light")
    assert page.execute_script(paper) == white
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_page_fits_a_phone(opened: Open, browser: Any, three: dict[str, Any]) -> None:
    long = [{**group, "label": f"{group['label']} {9 * 'method.setting=value '}"} for group in three["groups"]]
    phone = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    page = opened({**three, "groups": long})
    assert page.execute_script("return document.documentElement.scrollWidth") == 360
    assert page.find_element("css selector", "#accuracy svg[role=img]").size["width"] <= 340
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
