"""The files of examples/deploy, tried with the programs that they are for, where these are installed."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import typer.main
from wanted import extra, lacking

pytest.importorskip("flwr", reason="lacking: extra flower")

from parties import alone, make_base, make_site, over_network, parties
from waiting import until

from protea.cli import federation, site
from protea.network.coordinator.directory import CoordinatorDirectory

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
UNITS = ["protea-coordinator.service", "protea-site@.service"]
PROXIES = ["nginx", "caddy"]
OUTSIDE = "127.0.0.2"  # where the proxy listens; the coordinator has the same port at 127.0.0.1

pytestmark = pytest.mark.xdist_group("deployment")


def test_every_file_is_named_in_the_docs() -> None:
    page = (DEPLOY.parents[1] / "docs" / "deploy.md").read_text("utf-8")
    missing = [path.name for path in DEPLOY.iterdir() if f"examples/deploy/{path.name}" not in page]
    assert not missing


@pytest.mark.parametrize("name", [*UNITS, "compose.yaml"])
def test_the_commands_are_commands(name: str) -> None:
    text = (DEPLOY / name).read_text("utf-8")
    found = re.findall(r"^ExecStart=\S+/protea (.+)$|^ *command: \[(.+)\]$", text, re.MULTILINE)
    assert found
    for unit, compose in found:
        group, command, *words = (unit or compose.replace(",", "")).split()
        app = {"federation": federation.app, "site": site.app}[group]
        context = typer.main.get_command(app).commands[command].make_context(command, words)  # type: ignore[attr-defined]
        assert re.match("/(srv|data)/", str(context.params["directory"]))


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_units(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        lacking("systemd-analyze")
    unit = tmp_path / name.replace("@", "@north")
    unit.write_text((DEPLOY / name).read_text("utf-8").replace("/opt/protea/bin/protea", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    own = [line for line in done.stderr.splitlines() if "protea" in line]  # units of this machine are not ours
    assert not own


def test_docker_compose_takes_the_file(tmp_path: Path) -> None:
    if shutil.which("docker-compose") is None:
        lacking("docker-compose")
    for change, fine in (("", True), ("mem_limit: 2g", False)):  # a word of ours, which no service has
        file = tmp_path / f"{fine}.yaml"
        text = (DEPLOY / "compose.yaml").read_text("utf-8")
        file.write_text(text.replace(change, "memory: 2g") if change else text)
        done = subprocess.run(["docker-compose", "--file", str(file), "config", "--quiet"], capture_output=True)
        assert (done.returncode == 0) == fine, done.stderr


def test_the_package_is_built_from_what_the_image_gets(tmp_path: Path) -> None:
    """The copies of the Dockerfile, and no keys of a federation beside them."""
    extra("package")
    root, text = DEPLOY.parents[1], (DEPLOY / "Dockerfile").read_text("utf-8")
    for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        *names, place = line.split()
        folder = tmp_path / place.strip("/")
        for name in names:
            assert (root / name).exists() and name != "."
            if (root / name).is_dir():
                shutil.copytree(root / name, folder)
            else:
                folder.mkdir(exist_ok=True)
                shutil.copy(root / name, folder)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    subprocess.run([*command, str(tmp_path / "src")], check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("protea-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert {"protea/core/method.py", "protea/examples/digits.toml"} <= set(archive.namelist())


def write_proxy(program: str, base: CoordinatorDirectory, folder: Path) -> list[str]:
    """Write the files of a proxy, with addresses and folders of this test, and give the command that starts it."""
    if shutil.which(program) is None:
        lacking(program)
    text = (DEPLOY / {"nginx": "nginx.conf", "caddy": "Caddyfile"}[program]).read_text("utf-8")
    for old, new in (
        ("203.0.113.5", OUTSIDE),
        ("8443", str(base.guests.port)),
        ("/srv/fed/federation", str(base.path)),
    ):
        assert old in text
        text = text.replace(old, new)
    folder.mkdir()
    (folder / "proxy").write_text(text)
    if program == "caddy":
        return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "proxy")]
    places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{each}_temp_path {folder / each};\n" for each in places)
    main = "user root;\n" if os.geteuid() == 0 else ""  # the keys are for their owner only
    main += (
        f"pid {folder / 'pid'};\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}include {folder / 'proxy'};\n}}\n"
    )
    (folder / "main").write_text(main)
    log = folder / "error"
    return [
        "nginx",
        "-p",
        str(folder),
        "-c",
        str(folder / "main"),
        "-e",
        str(log),
        "-g",
        f"daemon off; error_log {log};",
    ]


@contextmanager
def proxy(program: str, base: CoordinatorDirectory, folder: Path) -> Iterator[None]:
    command = write_proxy(program, base, folder)
    homes = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, **homes})
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)
        sys.stderr.write((folder / "said").read_text()[-2000:])


def status(base: CoordinatorDirectory, path: str, method: str = "GET") -> int:
    """What the proxy answers; 0 while nobody does."""
    trusting = ssl.create_default_context(cafile=str(base.path / "keys" / "ca.crt"))
    request = Request(f"https://{OUTSIDE}:{base.guests.port}{path}", method=method)
    try:
        return int(urlopen(request, context=trusting, timeout=10).status)
    except HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.parametrize("program", PROXIES)
def test_a_proxy_passes_on_what_sites_need_and_nothing_else(program: str, tmp_path: Path) -> None:
    """Before a coordinator that is not there yet: what is passed on gives 502, what is not gives 403."""
    base = make_base(tmp_path / "base", ["north"], host=OUTSIDE)
    with proxy(program, base, tmp_path / "proxy"):
        until(lambda: status(base, "/"), 20)
        assert status(base, "/v1/fleet/pull-messages", "POST") == 502
        for path in ("/v1/control/list-nodes", "/v1/runtime/get-nodes", "/docs", "/v1/fleet/../control/list-nodes"):
            assert status(base, path, "POST") == 403, path


@pytest.mark.network
@pytest.mark.parametrize("program", PROXIES)
def test_sites_behind_a_proxy_end_as_in_one_process(program: str, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", ["north", "south"], rounds=4, host=OUTSIDE)
    names = ("north", "south")
    sites = [make_site(tmp_path / name, base.path / "bundles" / f"{name}.protea", name) for name in names]
    expected = alone(base.task, sites, tmp_path / "alone")
    with proxy(program, base, tmp_path / "proxy"), parties(tmp_path) as all_of:
        server = all_of.serve(base, listen="127.0.0.1")
        for each in sites:
            all_of.join(each)
        assert server.wait(300) == 0
    assert over_network(base, sites) == expected
    assert "does not let this site in" not in (tmp_path / "north.log").read_text()
