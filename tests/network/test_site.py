"""A site's directory: what its owner may bring, what is told if it does not fit, and what would leave."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typed import Command

pytest.importorskip("flwr", reason="lacking: extra flower")

import places
import torch
from safetensors.torch import load_file

from protea.clients.worker import Worker
from protea.core.errors import ClientError, ConfigError, DataError
from protea.core.message import nbytes
from protea.core.payload import pack
from protea.engines.messages import reply_from_bytes
from protea.federation.jobs import Job
from protea.network.coordinator.directory import CoordinatorDirectory
from protea.network.site.audit import audit_lines
from protea.network.site.check import aggregate_alone, trial
from protea.network.site.directory import Site
from protea.network.site.service import SiteService
from protea.network.task import started_server


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Command) -> Command:
    """``command("site", "check")`` in a new folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return typed


@pytest.fixture
def base(tmp_path: Path) -> CoordinatorDirectory:
    return places.base(tmp_path / "base")


@pytest.fixture
def bundle(base: CoordinatorDirectory) -> Path:
    return base.invite("north")


def numbers(model: torch.nn.Module) -> list[float]:
    return [float(parameter.detach().double().sum()) for parameter in model.parameters()]


# What a site may bring

MODELS = {
    "a body": (places.MODEL, "site.py:Sequential"),
    "a whole classifier": (
        "\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))\n",
        "site.py:Sequential",
    ),
    "a lazy layer": (
        "\n    return nn.Sequential(nn.Flatten(), nn.LazyLinear(24), nn.BatchNorm1d(24))\n",
        "site.py:Sequential",
    ),
    "an architecture": ('\n    return "tiny_mlp"\n', "tiny_mlp"),
    "a split model": (
        "\n    from protea import SplitModel\n"
        "    return SplitModel(nn.Linear(64, 16), nn.Identity(), nn.Linear(16, 10))\n",
        "site.py:SplitModel",
    ),
}


@pytest.mark.parametrize(("body", "name"), MODELS.values(), ids=MODELS)
def test_a_model_of_any_kind_is_trained(tmp_path: Path, bundle: Path, body: str, name: str) -> None:
    site = places.site(tmp_path / "site", bundle, places.code(model=body))
    found = trial(site.path)
    assert found.model == name == site.model_name and found.parameters > 0
    assert {(each.name, each.shape) for each in found.leaving if each.task == "train"} == {
        ("vectors", "10 x 16"),
        ("counts", "10"),
    }
    assert found.classes == list(places.CLASSES)


def test_functions_are_told_of_the_task_if_they_want(tmp_path: Path, bundle: Path) -> None:
    python = places.code().replace(
        "def model():", "def model(dim, classes):\n    assert (dim, len(classes)) == (16, 10)"
    )
    assert places.site(tmp_path / "site", bundle, python).model_name == "site.py:Sequential"


DATA = {
    "arrays": (places.DATA, (107, 13, 30)),
    "a test part": (
        "\n    x, y = load_digits(return_X_y=True)\n"
        "    return x[:150].astype('float32'), y[:150], x[150:190].astype('float32'), y[150:190]\n",
        (135, 15, 40),
    ),
    "names as labels": (
        "\n    x, y = load_digits(return_X_y=True)\n"
        f"    return x[:150].astype('float32'), np.array({places.CLASSES})[y[:150]]\n",
        (107, 13, 30),
    ),
    "names of some classes": (
        "\n    x, y = load_digits(return_X_y=True)\n    x, y = x[y < 3][:150], y[y < 3][:150]\n"
        f"    return x.astype('float32'), [{places.CLASSES}[k] for k in y]\n",
        (105, 15, 30),
    ),
    "tensors": (
        "\n    x, y = load_digits(return_X_y=True)\n"
        "    return torch.tensor(x[:150], dtype=torch.float32), torch.tensor(y[:150])\n",
        (107, 13, 30),
    ),
    "a torch data set": (
        "\n    x, y = load_digits(return_X_y=True)\n"
        "    class Own(torch.utils.data.Dataset):\n"
        "        def load(self): raise NotImplementedError\n"  # a method of that name means nothing to us
        "        def __len__(self): return 150\n"
        "        def __getitem__(self, row): return x[row].astype('float32'), int(y[row])\n"
        "    return Own()\n",
        (107, 13, 30),
    ),
    "a table": (
        "\n    from protea.data.sources.csv_table import Csv\n"
        "    from pathlib import Path\n"
        "    return Csv(Path(__file__).parent / 'digits.csv', label='digit')\n",
        (105, 15, 30),
    ),
}


def table(path: Path) -> None:
    """The digits 0, 1 and 2 by name."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rows = [(*row, places.CLASSES[k]) for row, k in zip(x, y, strict=True) if k < 3][:150]
    head = ",".join([*(f"p{k}" for k in range(64)), "digit"])
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in rows)]) + "\n")


@pytest.mark.parametrize(("body", "parts"), DATA.values(), ids=DATA)
def test_data_of_any_kind_are_split_and_trained_on(
    tmp_path: Path, bundle: Path, body: str, parts: tuple[int, int, int]
) -> None:
    site = places.site(tmp_path / "site", bundle, places.code(data=body))
    table(site.path / "digits.csv")
    found = trial(site.path)
    assert sum((found.train, found.validation, found.test)) == sum(parts)
    assert found.test == parts[2] and abs(found.train - parts[0]) <= 2
    assert found.classes == (
        list(places.CLASSES)
        if body not in (DATA["a table"][0], DATA["names of some classes"][0])
        else ["zero", "one", "two"]
    )
    assert site.dataset.names == places.CLASSES


def test_labels_by_name_are_the_labels_by_number(tmp_path: Path, bundle: Path) -> None:
    by_number = places.site(tmp_path / "a", bundle).dataset
    by_name = places.site(tmp_path / "b", bundle, places.code(data=DATA["names as labels"][0])).dataset
    assert torch.equal(by_number.y, by_name.y)
    some = places.site(tmp_path / "c", bundle, places.code(data=DATA["names of some classes"][0])).dataset
    assert set(some.y.tolist()) == {0, 1, 2}


def test_two_sites_split_and_begin_differently_and_one_always_alike(tmp_path: Path, base: CoordinatorDirectory) -> None:
    bundles = [base.invite(name) for name in ("east", "west")]
    east, west = (places.site(tmp_path / path.stem, path) for path in bundles)
    again = places.site(tmp_path / "again", bundles[0])
    places.give_seed(again.path, "east")
    assert not torch.equal(east.share.test, west.share.test) and torch.equal(east.share.test, again.share.test)
    models = [numbers(Worker(each.plan()).client(each.id).model) for each in (east, west, again)]
    assert models[0] == models[2] != models[1]


# What is told if it does not fit

WRONG: dict[str, tuple[str, type[Exception], str]] = {
    "no model()": ("def data(): ...\n", ConfigError, r"has no function model\(\)"),
    "no data()": ("def model(): ...\n", ConfigError, r"has no function data\(\)"),
    "data that is no function": ("def model(): ...\ndata = 3\n", ConfigError, r"has no function data\(\)"),
    "a mistake in writing": ("def model(:\n", ConfigError, "site.py cannot be run: SyntaxError"),
    "an import that fails": ("import nothing_like_this\n", ConfigError, "cannot be run: ModuleNotFoundError"),
    "a model that raises": (
        places.code(model="\n    raise ValueError('no weights')\n"),
        ConfigError,
        r"model\(\) fails: ValueError: no weights",
    ),
    "data that raise": (
        places.code(data="\n    return np.load('none.npz')\n"),
        ConfigError,
        r"data\(\) fails: FileNotFoundError",
    ),
    "no model but a number": (places.code(model="\n    return 3\n"), ConfigError, r"model\(\) gives a int"),
    "an architecture that is none": (places.code(model='\n    return "resnt18"\n'), ConfigError, "resnt18"),
    "a model for other inputs": (
        places.code(model="\n    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 24))\n"),
        ConfigError,
        "site.py:Sequential",
    ),
    "a split model of another width": (
        places.code(
            model="\n    from protea import SplitModel\n"
            "    return SplitModel(nn.Linear(64, 8), nn.Identity(), nn.Linear(8, 10))\n"
        ),
        ConfigError,
        "16",
    ),
    "a class that the task has not": (
        places.code(data="\n    return np.zeros((4, 64), 'float32'), ['one', 'two', 'ten', 'one']\n"),
        DataError,
        "'ten' is not among the classes",
    ),
    "a number that the task has not": (
        places.code(data="\n    return np.zeros((4, 64), 'float32'), [0, 1, 2, 10]\n"),
        DataError,
        "Labels run from 0 to 10; with 10 classes",
    ),
    "three things": (
        places.code(data="\n    return np.zeros((4, 64)), [0, 1, 0, 1], 3\n"),
        DataError,
        "3 things were returned",
    ),
    "fewer labels than inputs": (
        places.code(data="\n    return np.zeros((4, 64)), [0, 1, 0]\n"),
        DataError,
        "4 inputs but 3 labels",
    ),
    "inputs alone": (places.code(data="\n    return np.zeros((4, 64))\n"), DataError, "needs labels"),
    "nothing": (places.code(data="\n    return None\n"), DataError, r"data\(\)"),
    "a value that is no number": (
        places.code(data="\n    return np.full((4, 64), np.nan, 'float32'), [0, 1, 0, 1]\n"),
        DataError,
        "not finite",
    ),
    "a data set that raises": (
        places.code(
            data="\n    class Own(torch.utils.data.Dataset):\n"
            "        def __len__(self): return 5\n"
            "        def __getitem__(self, row): raise KeyError('scan')\n"
            "    return Own()\n"
        ),
        DataError,
        r"data\(\): KeyError: 'scan'",
    ),
    "a table that is not there": (
        places.code(data="\n    from protea.data.sources.csv_table import Csv\n    return Csv('no.csv', label='y')\n"),
        DataError,
        "no.csv",
    ),
}


@pytest.mark.parametrize(("python", "kind", "complaint"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_told(
    tmp_path: Path, bundle: Path, python: str, kind: type[Exception], complaint: str
) -> None:
    places.site(tmp_path / "site", bundle, python)
    with pytest.raises(kind, match=complaint):
        trial(tmp_path / "site")


def test_a_model_that_fails_in_training_is_shown_to_its_owner_in_full(tmp_path: Path, bundle: Path) -> None:
    body = (
        "\n    class Own(nn.Linear):\n"
        "        def forward(self, x):\n"
        "            if self.training and x.requires_grad is False and len(x) > 5: raise ArithmeticError('batch 7')\n"
        "            return super().forward(x)\n"
        "    return Own(64, 24)\n"
    )
    places.site(tmp_path / "site", bundle, places.code(model=body))
    with pytest.raises(ClientError, match=r"The trial round failed: (.|\n)*site.py(.|\n)*ArithmeticError: batch 7"):
        trial(tmp_path / "site")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ("raport = false", "Did you mean report"),
        ("threads = 0", "threads"),
        ("[training]\nlrr = 1", r"Did you mean training\.lr"),
        ("[training]\nlr = -1", r"training\.lr"),
        ("[split]\ntest = 2", r"split\.test"),
        ("report =", "cannot be read"),
    ],
)
def test_settings_that_are_none_are_told(tmp_path: Path, bundle: Path, settings: str, complaint: str) -> None:
    places.site(tmp_path / "site", bundle, settings=settings)
    with pytest.raises(ConfigError, match=complaint):
        trial(tmp_path / "site")


def test_settings_that_are_no_text_are_told(tmp_path: Path, bundle: Path) -> None:
    site = places.site(tmp_path / "site", bundle)
    (site.path / "site.toml").write_bytes(b'device = "\xff"')
    with pytest.raises(ConfigError, match=r"site.toml cannot be read"):
        trial(site.path)


def test_a_directory_without_site_or_bundle_is_none(tmp_path: Path, bundle: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no site.py.  Make one: protea site init"):
        Site(tmp_path)
    site = places.site(tmp_path / "site", bundle)
    (site.path / "bundle" / "bundle.json").unlink()
    with pytest.raises(ConfigError, match="has no bundle yet"):
        Site(site.path)


def test_public_inputs_that_do_not_fit_are_told(tmp_path: Path, bundle: Path) -> None:
    from safetensors.torch import save_file

    site = places.site(tmp_path / "site", bundle)
    path = site.path / "bundle" / "public.safetensors"
    path.write_bytes(b"rubble")
    with pytest.raises(ConfigError, match="cannot be read"):
        site.public()
    save_file({"y": torch.ones(2, 64)}, path)
    with pytest.raises(ConfigError, match="holds y; expected is x alone"):
        site.public()
    save_file({"x": torch.ones(2, 64)}, path)
    with pytest.raises(ConfigError, match=r"samples of shape \(64,\); the task's are \(\)"):
        site.public()


# What would leave


@pytest.mark.parametrize("method", ["local", "fedproto", "fedtgp", "fedpagr", "fedsa", "lg_fedavg"])
def test_what_check_shows_is_what_the_first_round_sends(tmp_path: Path, method: str) -> None:
    base = places.base(tmp_path / "base", f"method.name={method}", "shape=[64]")
    policy = places.ALL if method == "lg_fedavg" else None  # which the default does not allow
    site = places.site(tmp_path / "site", base.invite("north"), policy=policy)
    shown = trial(site.path)
    assert not (site.path / "state").exists() and not (site.path / "audit.jsonl").exists()  # it leaves no trace

    server = started_server(site.task)
    server.round, service = 1, SiteService(site)
    for task in ("train", "evaluate"):
        down = pack(site.task.method.broadcast(server, site.id))
        answer = places.only(service.handle("job", base.signer("job", places.job(task, 1, 0, down))))
        sent = reply_from_bytes(answer)
        assert sent.error is None
        told = {(each.name, each.shape, each.dtype, each.bytes) for each in shown.leaving if each.task == task}
        assert told == {
            (name, " x ".join(map(str, t.shape)) or "1", str(t.dtype).removeprefix("torch."), nbytes({name: t}))
            for name, t in sent.up.items()
        }
        assert abs(len(answer) - shown.sizes[task]) <= 16  # seconds may have more digits or fewer
        if task == "train":
            assert f"number of training samples ({sent.samples})" in shown.beside
            counts = [t for name, t in sent.up.items() if name.endswith("counts")]
            there = [name for name, count in zip(places.CLASSES, counts[0], strict=True) if count] if counts else []
            assert shown.classes == there
            aggregate_alone(site, server, sent)


def test_a_protected_site_sends_what_it_would_send_without(tmp_path: Path) -> None:
    shown = []
    for protect in (False, True):
        base = places.base(tmp_path / f"base{protect}", protect=protect)
        site = places.site(tmp_path / f"site{protect}", base.invite("north"), settings='seed = "task"\n')
        shown.append(trial(site.path))
    assert shown[0].leaving == shown[1].leaving and shown[0].beside == shown[1].beside


def test_a_protected_site_must_hold_out_samples(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base", protect=True)
    site = places.site(tmp_path / "site", base.invite("north"), settings="[split]\nvalidation = 0.0\n")
    with pytest.raises(ConfigError, match=r"holds out no samples.*split\.validation in site\.toml"):
        site.restored().client(site.id)


def test_an_upload_that_a_coordinator_would_refuse_is_told(tmp_path: Path) -> None:
    base = places.base(tmp_path / "base", "method.name=lg_fedavg", "shape=[64]")
    own = "\n    from protea import SplitModel\n"
    own += "    head = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 10))\n"
    own += "    return SplitModel(nn.Linear(64, 16), nn.Identity(), head)\n"
    site = places.site(tmp_path / "site", base.invite("north"), places.code(model=own), policy=places.ALL)
    with pytest.raises(ClientError, match="The coordinator would refuse what this site sends"):
        trial(site.path)


def test_norms_are_of_rows(tmp_path: Path, bundle: Path) -> None:
    site = places.site(tmp_path / "site", bundle)
    shown = {each.name: each for each in trial(site.path).leaving if each.task == "train"}
    reply = Worker(site.plan()).run(Job("train", 1, 0))
    lengths = reply.up["vectors"].norm(dim=1)
    assert shown["vectors"].norms == f"{lengths.min():.3g} to {lengths.max():.3g}"


def test_a_site_that_does_not_report_shows_no_evaluation(tmp_path: Path, bundle: Path) -> None:
    site = places.site(tmp_path / "site", bundle, settings="report = false\n")
    shown = trial(site.path)
    assert {each.task for each in shown.leaving} == {"train"} == shown.sizes.keys()


def test_a_site_may_train_in_its_own_way(tmp_path: Path, bundle: Path) -> None:
    own = "[training]\nbatch = 75\nlr = 0.5\n[split]\ntest = 0.5\n"
    site, plain = places.site(tmp_path / "own", bundle, settings=own), places.site(tmp_path / "plain", bundle)
    assert (site.training.batch, site.training.lr, site.training.epochs) == (75, 0.5, plain.training.epochs)
    assert trial(site.path).test == 75
    a, b = (Worker(each.plan()).run(Job("train", 1, 0)).metrics["loss"] for each in (site, plain))
    assert a != b


def test_a_site_may_keep_one_order_of_its_samples(tmp_path: Path, bundle: Path) -> None:
    own = 'training = { order = "once" }\n'
    once, fixed = (
        places.site(tmp_path / name, bundle, settings=own.replace("once", name)) for name in ("once", "fixed")
    )
    places.give_seed(once.path, "east")
    places.give_seed(fixed.path, "east")
    a, b, again = (Worker(each.plan()).client(each.id).train for each in (once, fixed, once))
    assert torch.equal(a.y, again.y) and not torch.equal(a.y, b.y) and torch.equal(a.y.sort()[0], b.y.sort()[0])


# As its user meets it


def test_a_new_site_from_nothing_to_ready(command: Command, tmp_path: Path, bundle: Path) -> None:
    begun = command("site", "init", "north")
    assert begun.code == 0 and "Fill in model() and data()" in begun.out
    early = command("site", "check", str(bundle), "--dir", "north")
    assert early.code == 2 and "data() fails: FileNotFoundError" in early.err  # there are no data yet

    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    import numpy as np

    np.savez(tmp_path / "north" / "data.npz", x=x[:150].astype(np.float32), y=y[:150])
    done = command("site", "check", "--dir", "north")  # the example finds its data wherever one is
    assert done.code == 0 and done.err == "", done.err
    assert "Site north, client 0, of the task FedProto, 4 rounds, 10 classes." in done.out
    assert re.search(r"train +vectors +10 x 16 +float32 +640 ", done.out)
    assert re.search(r"train +counts +10 +float32 +40 ", done.out)
    assert f"Classes whose prototypes leave: {', '.join(places.CLASSES)}." in done.out
    assert "Ready.  Take part: protea site join --dir north" in done.out


def test_init_leaves_what_is_there(command: Command, tmp_path: Path, bundle: Path) -> None:
    (tmp_path / "site.py").write_text("mine")
    done = command("site", "init")
    assert done.code == 2 and "exists already" in done.err and (tmp_path / "site.py").read_text() == "mine"
    assert not (tmp_path / "site.toml").exists()


def test_init_can_take_the_bundle(command: Command, tmp_path: Path, bundle: Path) -> None:
    assert command("site", "init", "north", "--bundle", str(bundle)).code == 0
    assert Site(tmp_path / "north").name == "north"


def test_the_bundle_of_another_site_or_federation_is_not_put_over_ones_own(
    command: Command, tmp_path: Path, base: CoordinatorDirectory, bundle: Path
) -> None:
    places.site(tmp_path / "north", bundle)
    other = places.base(tmp_path / "other").invite("north")
    before = (tmp_path / "north" / "bundle" / "bundle.json").read_bytes()
    for wrong in (base.invite("south"), other):
        done = command("site", "check", str(wrong), "--dir", "north")
        assert done.code == 2 and "belongs to site north" in done.err
        assert (tmp_path / "north" / "bundle" / "bundle.json").read_bytes() == before


def test_with_a_new_task_a_site_begins_anew_and_keeps_what_it_had(
    command: Command, tmp_path: Path, base: CoordinatorDirectory, bundle: Path
) -> None:
    site = places.site(tmp_path / "north", bundle)
    service = SiteService(site)
    for round in (1, 2, 3):
        service.handle("job", base.signer("job", places.job("train", round)))
    same = command("site", "check", str(bundle), "--dir", "north")
    assert same.code == 0 and (site.path / "state").exists()  # the same task: nothing happens
    text = (base.path / "task.toml").read_text()
    (base.path / "task.toml").write_text(text.replace("rounds = 4", "rounds = 9"))
    (new,) = base.renew()
    done = command("site", "check", str(new), "--dir", "north")
    assert done.code == 0 and "what was trained for the former one is in north/state-before" in done.out
    assert (site.path / "state-before" / "client-000" / "000003").is_dir() and not (site.path / "state").exists()
    reply = reply_from_bytes(
        places.only(SiteService(Site(site.path)).handle("job", base.signer("job", places.job("train", 1))))
    )
    assert reply.error is None


def test_the_trained_model_can_be_had(
    command: Command, tmp_path: Path, base: CoordinatorDirectory, bundle: Path
) -> None:
    site = places.site(tmp_path / "north", bundle)
    early = command("site", "export", "model.safetensors", "--dir", "north")
    assert early.code == 2 and "has not trained yet" in early.err
    service = SiteService(site)
    service.worker.store.rewind(0, 1)  # its state before the first round is on disk, as if it had been killed in it
    early = command("site", "export", "model.safetensors", "--dir", "north")
    assert early.code == 2 and "has not trained yet" in early.err and not (tmp_path / "model.safetensors").exists()

    for round in (1, 2):
        service.handle("job", base.signer("job", places.job("train", round)))
    live = service.worker.worker.client(0).model
    found = Site(site.path).trained()
    assert not found.training and numbers(found) == numbers(live)
    done = command("site", "export", "model.safetensors", "--dir", "north")
    assert done.code == 0
    weights = load_file(tmp_path / "model.safetensors")
    assert weights.keys() == live.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in live.state_dict().items())
    again = command("site", "export", "model.safetensors", "--dir", "north")
    assert again.code == 2 and "exists already" in again.err


def test_a_state_that_cannot_be_read_is_told_before_anything_is_begun(
    tmp_path: Path, base: CoordinatorDirectory, bundle: Path
) -> None:
    site = places.site(tmp_path / "north", bundle)
    SiteService(site).handle("job", base.signer("job", places.job("train", 1)))
    (path,) = site.path.glob("state/client-000/000001/*.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Exception, match="cannot be read"):
        Site(site.path).restored().client(0)


def test_half_a_line_of_an_audit_says_nothing() -> None:
    assert list(audit_lines(b'{"round": 1}\n{"round": 2, "by\n{"round": 3}\n')) == [{"round": 1}, {"round": 3}]
