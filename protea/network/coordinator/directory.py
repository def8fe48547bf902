"""A coordinator's directory: task, keys, invited sites, and the run.

task.toml        what all parties agree on
federation.json  where the server is, and who was invited
keys/            the CA, the server's certificate, the coordinator's signing key and their chain; secret
bundles/         one file for each site; one with a private key in it is to be handed over by a safe way
public.safetensors  inputs that all parties have, for methods that need them
flower/          state and logs of the SuperLink
run/             records and checkpoints, as of any run
status.json      what the coordinator does now, and how its sites are, for protea watch
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from protea.config.complaints import complaint
from protea.core.errors import ConfigError, nearest
from protea.core.files import make_folder, write_bytes, write_json, write_private, write_text
from protea.engines.flower.link import Tls
from protea.network import task as tasks
from protea.network.task import Task
from protea.network.trust import bundles, keys
from protea.network.trust.chain import CHAIN, longer_chain
from protea.network.trust.requests import Request, follows, refuse_no_name
from protea.network.trust.signatures import fingerprint


@dataclass(frozen=True)
class Invited:
    """A site that was invited; its place in the list is its number as a client, so none is ever taken out."""

    name: str
    key: str | None  # public, PEM
    removed: bool = False
    own: bool = False  # the site made its key; the coordinator has never had the private one
    former: tuple[str, ...] = ()  # public keys that it had before, PEM


@dataclass(frozen=True)
class Guests:
    """The content of ``federation.json``: where the server is, and who was invited."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    host: str  # under which sites reach the server
    port: int
    tls: bool
    sites: tuple[Invited, ...] = ()


_GUESTS = TypeAdapter(Guests)


class CoordinatorDirectory:
    """The directory of a coordinator: made by ``create``, or opened by ``open``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls, path: Path, task: Task, host: str, port: int, tls: bool, public: bytes | None = None
    ) -> CoordinatorDirectory:
        """Make a new directory, with new keys and no sites."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} exists and is not an empty directory.  Choose another one.")
        if tls:
            keys.refuse_no_host(host)
        if not 0 < port < 65536:
            raise ConfigError(f"{port} is no port: 1 to 65535 are.")
        directory = cls(path)
        make_folder(path / "keys")
        for folder in (path, path / "keys"):
            folder.chmod(0o700)  # what sites send is in here too
        if tls:
            keys.make_tls(path / "keys", [host, *keys.HERE])
        write_private(path / "keys" / "coordinator.key", keys.Signer.make())
        if public is not None:
            write_bytes(path / "public.safetensors", public)
        write_text(path / "task.toml", tasks.task_to_toml(task))
        directory._write(Guests(host, port, tls))
        return directory

    @classmethod
    def open(cls, path: Path) -> CoordinatorDirectory:
        """Open a directory; raise :class:`ConfigError` if it is not a federation's."""
        directory = cls(path)
        if not (path / "federation.json").is_file():
            raise ConfigError(
                f"{path} is not a federation's directory: it has no federation.json.  Make one: protea federation init"
            )
        directory.read()
        return directory

    @property
    def task(self) -> Task:
        """The task, as the file has it now."""
        return tasks.load_task(self.path / "task.toml")

    @property
    def guests(self) -> Guests:
        """Address and invited sites, as the file has them now."""
        return self.read()

    def read(self) -> Guests:
        """Read ``federation.json``; raise :class:`ConfigError` if it cannot be read."""
        path = self.path / "federation.json"
        try:
            found: Guests = _GUESTS.validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise ConfigError(f"{path} cannot be read: {complaint(error)}.") from error
        return found

    @property
    def site_keys(self) -> dict[str, bytes]:
        """Public keys of the sites that may connect, by name."""
        return {s.name: s.key.encode() for s in self.guests.sites if s.key is not None and not s.removed}

    @property
    def signer(self) -> keys.Signer:
        """The coordinator's signing key."""
        return keys.Signer((self.path / "keys" / "coordinator.key").read_bytes())

    @property
    def tls(self) -> Tls | None:
        """The files of the server's certificate; ``None`` without TLS."""
        folder = self.path / "keys"
        files = Tls(folder / "ca.crt", folder / "server.crt", folder / "server.key")
        return files if self.guests.tls else None

    @property
    def public(self) -> Path | None:
        """The file of public inputs; ``None`` if there is none."""
        path = self.path / "public.safetensors"
        return path if path.exists() else None

    def invite(self, name: str) -> Path:
        """Invite one more site: write its bundle, and return the path."""
        guests = self.guests
        refuse_names([name], [site.name for site in guests.sites])
        private, public = keys.make_site_key() if guests.tls else (None, None)
        site = Invited(name, None if public is None else public.decode())
        path = self._bundle(guests, site, len(guests.sites), private)
        self._write(replace(guests, sites=(*guests.sites, site)))
        return path

    def answer(self, request: Request, *, replace_key: bool = False) -> Path:
        """Invite the site that asks for it by a key of its own, or let one that is known change its key.

        A change must be signed by the key before; ``replace_key`` is for a key that was lost.  Return the path of the
        bundle, which has no private key.
        """
        guests = self.guests
        if not guests.tls:
            raise ConfigError(
                f"{self.path} was made without TLS, where sites have no keys.  Invite {request.site} by its name; or "
                f"make the federation anew: protea federation init --tls HOST"
            )
        public = keys.canonical(request.key.encode()).decode()
        self._refuse_taken_key(public, request.site)
        place = next((k for k, site in enumerate(guests.sites) if site.name == request.site), None)
        if place is None:
            refuse_names([request.site], [site.name for site in guests.sites])
            place, site = len(guests.sites), Invited(request.site, public, own=True)
        else:
            site = self._with_key(guests.sites[place], public, request, replace_key)
        path = self._bundle(guests, site, place, None)
        self._write(replace(guests, sites=(*guests.sites[:place], site, *guests.sites[place + 1 :])))
        return path

    def _refuse_taken_key(self, public: str, name: str) -> None:
        """Raise :class:`ConfigError` if another site has, or had, this key."""
        for site in self.guests.sites:
            if public in (site.key, *site.former) and site.name != name:
                raise ConfigError(f"The key in this request is that of the site {site.name!r}.  Each site has its own.")

    def _with_key(self, site: Invited, public: str, request: Request, replace_key: bool) -> Invited:
        """Return a site with the key that it asks for; raise :class:`ConfigError` if it may not have it."""
        if site.removed:
            raise ConfigError(f"The site {site.name!r} was removed; its name is not used again.  Choose another name.")
        if public == site.key:
            return site  # its bundle is written anew
        if public in site.former:
            raise ConfigError(f"{site.name} had this key before, and changed it.  Ask for a request with a new one.")
        if site.key is not None and not follows(request, site.key.encode()) and not replace_key:
            raise ConfigError(
                f"{site.name} is known by the key {fingerprint(site.key.encode())}, which has not signed this "
                f"request.  There: protea site request {site.name} --rotate.  If that key is lost, and the fingerprint "
                f"of the new one was read to you by a person you know: add --replace"
            )
        former = () if site.key is None else (site.key,)
        return replace(site, key=public, own=True, former=(*site.former, *former))

    def rotate(self) -> list[Path]:
        """Make the coordinator's own keys anew, and all bundles; return the paths of these.

        The former signing key signs the new one, so that sites see that it is the same coordinator's.
        """
        guests, folder = self.guests, self.path / "keys"
        old, private = self.signer, keys.Signer.make()
        new = keys.Signer(private)
        chain = (folder / CHAIN).read_bytes() if (folder / CHAIN).exists() else b"[]"
        write_bytes(folder / CHAIN, longer_chain(chain, old, new.public()))
        write_private(folder / "coordinator.key", private)
        if guests.tls:
            keys.make_tls(folder, [guests.host, *keys.HERE])
        return self.renew()

    def renew(self) -> list[Path]:
        """Write all bundles again, with the task as it is now and the keys as they were; return their paths.

        The key of a site whose bundle was deleted after it was handed over is not here any more: it gets a new one.
        """
        found, guests = [], self.guests
        for number, site in enumerate(guests.sites):
            if site.removed:
                continue
            old = self.path / "bundles" / f"{site.name}.protea"
            private = bundles.read_bundle(old).get("site.key") if old.exists() and not site.own else None
            if guests.tls and not site.own:
                private = private or keys.make_site_key()[0]
                public = keys.public_of_site(private).decode()
                former = (site.key,) if site.key not in (None, public) else ()
                site = replace(site, key=public, former=(*site.former, *former))
                guests = replace(guests, sites=(*guests.sites[:number], site, *guests.sites[number + 1 :]))
            found.append(self._bundle(guests, site, number, private))
        self._write(guests)
        return found

    def outdated(self) -> list[str]:
        """Return the names of sites whose bundles have another task than the directory has now."""
        now, sites = self.task.mark(), [site.name for site in self.guests.sites if not site.removed]
        places = {name: self.path / "bundles" / f"{name}.protea" for name in sites}
        tasks_of = {
            name: bundles.read_bundle(path)["task.toml"].decode() for name, path in places.items() if path.exists()
        }
        return [name for name, text in tasks_of.items() if tasks.parse_task(text, name).mark() != now]

    def _bundle(self, guests: Guests, site: Invited, number: int, private: bytes | None) -> Path:
        """Write the bundle of one site, with its private key unless the site made that itself."""
        host = f"[{guests.host}]" if ":" in guests.host else guests.host  # IPv6
        invitation = bundles.Invitation(bundles.FORMAT, site.name, number, f"{host}:{guests.port}", guests.tls)
        files = {"task.toml": (self.path / "task.toml").read_bytes(), "coordinator.pub": self.signer.public()}
        if site.key is not None:
            files["ca.crt"] = (self.path / "keys" / "ca.crt").read_bytes()
            files |= {bundles.PUBLIC_KEY: site.key.encode()} if private is None else {"site.key": private}
        if (chain := self.path / "keys" / CHAIN).exists():
            files[CHAIN] = chain.read_bytes()
        if self.public is not None:
            files["public.safetensors"] = self.public.read_bytes()
        (self.path / "bundles").mkdir(exist_ok=True)
        (self.path / "bundles").chmod(0o700)
        path = self.path / "bundles" / f"{site.name}.protea"
        write_private(path, bundles.pack_bundle(invitation, files))
        return path

    def remove(self, name: str) -> None:
        """Remove a site from the federation; the next round goes without it."""
        guests = self.guests
        there = [site.name for site in guests.sites if not site.removed]
        if name not in there:
            raise ConfigError(f"There is no site {name!r} in {self.path}.  {nearest(name, there)}")
        sites = tuple(replace(site, removed=True) if site.name == name else site for site in guests.sites)
        self._write(replace(guests, sites=sites))

    def _write(self, guests: Guests) -> None:
        write_json(self.path / "federation.json", asdict(guests))


def refuse_names(names: Iterable[str], known: Iterable[str] = ()) -> None:
    """Raise :class:`ConfigError` for what is no name of a site, and for a name that one has already."""
    taken = {name.casefold() for name in known}  # not every disk tells A from a
    for name in names:
        refuse_no_name(name)
        if name.casefold() in taken:
            raise ConfigError(f"A site {name!r} was invited already.  Choose another name.")
        taken.add(name.casefold())
