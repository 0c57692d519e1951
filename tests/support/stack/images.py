"""Images of the project's Dockerfiles, made without a container engine: each step in a layer over this machine's own.

The base image's place is taken by this machine's programs and its Python. RUN steps run in a mount namespace of their
own, chrooted into the layers; what two files begin with is run once, as by a builder's cache.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.waiting import Deadline, output_of

OWN_NAMESPACES = ("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
CHILD = Path(__file__).with_name("container_child.py")
HANDED_ON = ("PIP_", "UV_", "SSL_", "HTTP_", "HTTPS_", "NO_PROXY", "http_", "https_", "no_proxy")
"""How this machine reaches the package index, as a builder has it of its host."""

IGNORED = shutil.ignore_patterns("__pycache__")


@dataclass
class Image:
    """Layers, the newest first, and what the Dockerfile says of its processes."""

    layers: list[Path]
    environment: dict[str, str] = field(default_factory=dict)
    working_in: str = "/"
    user: str = "root"
    entrypoint: list[str] = field(default_factory=list)

    def ids(self) -> tuple[int, int]:
        """User and group of its processes, by the image's own list of users."""
        users = self.find("/etc/passwd").read_text(encoding="utf-8")
        line = re.search(rf"^{re.escape(self.user)}:[^:]*:(\d+):(\d+):", users, re.MULTILINE)
        assert line is not None, f"the image has no user {self.user}"
        return int(line.group(1)), int(line.group(2))

    def find(self, path: str) -> Path:
        """Where a file or folder of the image is; the first layer's name for it where it has none."""
        places = [layer / path.lstrip("/") for layer in self.layers]
        return next((place for place in places if place.exists()), places[0])


def base_layer(folder: Path) -> Path:
    """A root folder that has this machine's settings, and room for what is bound into it."""
    layer = folder / "base"
    for name in ("usr", "proc", "dev", "run", "opt", "home", "root", "var/lib", "var/tmp", "tmp"):
        (layer / name).mkdir(parents=True)
    (layer / "tmp").chmod(0o1777)
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            (layer / name).symlink_to(os.readlink(f"/{name}"))
    subprocess.run(["cp", "-a", "/etc", str(layer / "etc")], check=True)
    return layer


def base_binds() -> list[tuple[str, str, bool]]:
    """This machine's programs, and the Python that tests run on where the base image has its own.

    That one is at its own place too: it may have been built to look for its libraries there.
    """
    own = sys.base_prefix
    binds = [("/usr", "/usr", True)]
    return binds if own in ("/usr", "/usr/local") else [*binds, (own, "/usr/local", True), (own, own, True)]


class Builder:
    """Makes images of Dockerfiles.

    Args:
        folder: where layers are kept; on a file system that an overlay may lie on.
        context: the project's folder.
    """

    def __init__(self, folder: Path, context: Path) -> None:
        self.folder = folder
        self.context = context
        self.base = base_layer(folder)
        ignore = (context / ".dockerignore").read_text(encoding="utf-8").splitlines()
        assert next(line for line in ignore if not line.startswith("#")) == "*"
        self.sent = [line.removeprefix("!") for line in ignore if line.startswith("!")]

    def build(self, *files: Path) -> list[Image]:
        """An image of each Dockerfile."""
        texts = [instructions(file.read_text(encoding="utf-8")) for file in files]
        common = next((n for n, steps in enumerate(zip(*texts, strict=False)) if len(set(steps)) > 1), len(texts[0]))
        shared = self._steps(Image([self.base]), "common", texts[0][:common])
        return [self._steps(shared, file.name, steps[common:]) for file, steps in zip(files, texts, strict=True)]

    def layer(self, image: Image, name: str) -> Image:
        """The image with one more layer, still empty."""
        layer = self.folder / "layers" / name
        layer.mkdir(parents=True)
        return Image(
            [layer, *image.layers], dict(image.environment), image.working_in, image.user, list(image.entrypoint)
        )

    def _steps(self, image: Image, name: str, steps: list[tuple[str, str]]) -> Image:
        made = self.layer(image, name)
        for number, (word, rest) in enumerate(steps):
            match word:
                case "FROM":
                    made.environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
                case "ENV":
                    made.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
                case "WORKDIR":
                    made.working_in = rest
                    (made.layers[0] / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
                case "USER":
                    made.user = rest
                case "COPY":
                    self._copy(made, rest.split())
                case "RUN":
                    self._run(made, f"{name}-{number}", rest)
                case _:
                    raise AssertionError(f"an instruction that is not known here: {word} {rest}")
        return made

    def _copy(self, image: Image, words: list[str]) -> None:
        *sources, target = words
        place = image.layers[0] / image.working_in.lstrip("/") / target
        for source in sources:
            assert source.split("/")[0] in self.sent, f"{source} is not sent to the builder"
            found = self.context / source
            if found.is_dir():
                shutil.copytree(found, place, dirs_exist_ok=True, ignore=IGNORED)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, place / found.name)

    def _run(self, image: Image, name: str, command: str) -> None:
        caches = re.findall(r"--mount=type=cache,target=(\S+) ", command)
        script = re.sub(r"--mount=type=cache,target=\S+ ", "", command)
        binds = [(str(_cache()), target, False) for target in caches]
        handed_on = {key: value for key, value in os.environ.items() if key.startswith(HANDED_ON)}
        spec = self.spec(
            name, Image(image.layers[1:], image.environment, image.working_in), ["sh", "-ec", script], binds
        )
        spec |= {"upper": str(image.layers[0]), "environment": handed_on | {"HOME": "/root"} | spec["environment"]}
        file = self.write(name, spec)
        process = subprocess.Popen(
            [*OWN_NAMESPACES, sys.executable, str(CHILD), "start", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = output_of(process, within=Deadline.LONG, what=f"RUN {command}")
        assert process.returncode == 0, f"RUN {command}\n{said}"

    def spec(self, name: str, image: Image, command: list[str], binds: list[tuple[str, str, bool]]) -> dict[str, Any]:
        """What starts a command over an image, in a new layer of its own."""
        own = self.folder / "running" / name
        for part in ("upper", "work", "merged"):
            (own / part).mkdir(parents=True, exist_ok=True)
        user, group = image.ids()
        return {
            "lower": [str(layer) for layer in image.layers],
            **{part: str(own / part) for part in ("upper", "work", "merged")},
            "binds": [*base_binds(), *binds],
            "environment": dict(image.environment),
            "working_in": image.working_in,
            "user": user,
            "group": group,
            "command": command,
            "init": True,
        }

    def write(self, name: str, spec: dict[str, Any]) -> Path:
        """The spec as a file for the child."""
        file = self.folder / "running" / f"{name}.json"
        file.write_text(json.dumps(spec), encoding="utf-8")
        return file


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, each as its first word and the rest."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines]


def _cache() -> Path:
    """The user's cache, which a builder's cache stands for."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
