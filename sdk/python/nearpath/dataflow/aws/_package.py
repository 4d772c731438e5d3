"""Makes the zip for Lambda: the user's modules, nearpath with its native module, and their requirements."""

import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import nearpath

from . import _elf
from ._handler import MODULES

# Lambda's runtimes: Amazon Linux 2 has glibc 2.26, Amazon Linux 2023 has 2.34.
GLIBC = {"3.11": (2, 26), "3.12": (2, 34), "3.13": (2, 34), "3.14": (2, 34)}
ARCHITECTURES = {"x86_64": "x86_64", "arm64": "aarch64"}
# Lambda's quotas, in bytes.
MAX_UNZIPPED_BYTES = 250 << 20
MAX_DIRECT_BYTES = 50 << 20
# The earliest time of the zip format.
MIN_ZIP_TIME = (1980, 1, 1, 0, 0, 0)
COMPILED = ("__pycache__", "*.pyc")
# Files of pip with data of this machine.
LOCAL_FILES = ("direct_url.json", "INSTALLER", "RECORD", "REQUESTED")


class PackageError(Exception):
    """Reports why a package cannot be made, and the remedy."""


@dataclass(frozen=True)
class Target:
    """The runtime of the function."""

    python: str = "3.13"
    architecture: str = "x86_64"

    @property
    def glibc(self) -> tuple[int, int]:
        return GLIBC[self.python]

    @property
    def platforms(self) -> list[str]:
        """Returns the tags of compatible wheels, the best first (PEP 600 and its older names)."""
        machine = ARCHITECTURES[self.architecture]
        tags = [f"manylinux_{self.glibc[0]}_{minor}_{machine}" for minor in range(self.glibc[1], 16, -1)]
        return [*tags, f"manylinux2014_{machine}"]


@dataclass(frozen=True)
class Package:
    """A finished package."""

    path: pathlib.Path
    zipped: int
    unzipped: int

    @property
    def is_direct(self) -> bool:
        """Returns whether the package fits into the API call; otherwise it goes over S3."""
        return self.zipped <= MAX_DIRECT_BYTES


def make(
    out: pathlib.Path,
    code: Iterable[pathlib.Path],
    target: Target,
    requirements: pathlib.Path | None = None,
    wheel: pathlib.Path | None = None,
) -> Package:
    """Writes the zip. The same input makes the same bytes. Raises PackageError for a package that Lambda would refuse."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder, "package")
        tree.mkdir()
        _add_nearpath(tree, wheel)
        if requirements is not None:
            _add_requirements(tree, pathlib.Path(folder, "requirements"), requirements, target)
        modules = [pathlib.Path(os.path.abspath(path)) for path in code]  # `.` has a name, too
        for path in modules:
            _add(tree, path, *COMPILED, ".*")
        (tree / MODULES).write_text("".join(f"{path.name.removesuffix('.py')}\n" for path in modules))
        unzipped = _check(tree, target)
        out.parent.mkdir(parents=True, exist_ok=True)
        _zip(tree, out)
    return Package(out, out.stat().st_size, unzipped)


def _add_nearpath(tree: pathlib.Path, wheel: pathlib.Path | None) -> None:
    """Adds nearpath from a wheel, or from this Python."""
    if wheel is not None:
        try:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(tree)
        except (FileNotFoundError, zipfile.BadZipFile) as error:
            raise PackageError(f"{wheel} is no wheel: {error}") from None
    else:
        shutil.copytree(pathlib.Path(nearpath.__file__).parent, tree / "nearpath", ignore=shutil.ignore_patterns(*COMPILED))
    if not any(tree.glob("nearpath/_nearpath*.so")):
        raise PackageError(f"{wheel or nearpath.__file__} has no native module, which workers need: pass a wheel with --wheel")


def _add_requirements(tree: pathlib.Path, folder: pathlib.Path, requirements: pathlib.Path, target: Target) -> None:
    platforms = [argument for tag in target.platforms for argument in ("--platform", tag)]
    quiet = ["--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--no-warn-conflicts", "--no-compile"]
    destination = [
        "--target",
        str(folder),
        "--python-version",
        target.python,
        "--implementation",
        "cp",
        "--only-binary=:all:",
        *platforms,
    ]
    pip = [sys.executable, "-m", "pip", "install", *quiet, *destination, "-r", str(requirements)]
    result = subprocess.run(pip, capture_output=True, text=True)
    if result.returncode != 0:
        raise PackageError(
            f"pip finds no wheels for {requirements} (Python {target.python}, {target.architecture}):\n{result.stderr.strip()}"
        )
    for path in sorted(folder.iterdir()) if folder.exists() else ():
        if path.name == "nearpath":
            raise PackageError(f"{requirements} requires nearpath, which every package has: remove it")
        if path.name != "bin":  # programs refer to this machine's Python
            _add(tree, path, *COMPILED, *(LOCAL_FILES if path.suffix == ".dist-info" else ()))


def _add(tree: pathlib.Path, path: pathlib.Path, *excluded: str) -> None:
    """Adds a module's file or a package's folder under its own name."""
    folder = tree / path.name
    if folder.exists():
        raise PackageError(f"two entries are named {path.name}: rename {path}")
    try:
        if path.is_dir():
            shutil.copytree(path, folder, ignore=shutil.ignore_patterns(*excluded))
        else:
            shutil.copyfile(path, folder)
    except FileNotFoundError as error:
        raise PackageError(f"there is no {error.filename}: correct the path") from None
    except shutil.Error as error:  # has source, destination and cause for each file
        raise PackageError(str(error.args[0][0][2])) from None


def _check(tree: pathlib.Path, target: Target) -> int:
    """Checks all files and returns their total size in bytes."""
    unzipped, mismatches = 0, []
    for path in _files(tree):
        unzipped += path.stat().st_size
        with path.open("rb") as file:
            native = _elf.read(file)
        if native and (mismatch := _elf.find_mismatch(str(path.relative_to(tree)), native, target.architecture, target.glibc)):
            mismatches.append(mismatch)
    if mismatches:
        raise PackageError(
            "; ".join(mismatches) + ". Choose another --python-version or --platform, or matching wheels"
        )
    if unzipped > MAX_UNZIPPED_BYTES:
        raise PackageError(f"the package has {unzipped / 2**20:.0f} MB, Lambda accepts {MAX_UNZIPPED_BYTES >> 20}: {_largest(tree)}")
    return unzipped


def _largest(tree: pathlib.Path) -> str:
    sizes = {path.name: sum(file.stat().st_size for file in _files(path)) for path in tree.iterdir()}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    return "the largest are " + ", ".join(f"{name} ({sizes[name] / 2**20:.0f} MB)" for name in largest)


def _files(tree: pathlib.Path) -> Iterator[pathlib.Path]:
    if tree.is_file():
        yield tree
    yield from sorted(path for path in tree.rglob("*") if path.is_file())


def _zip(tree: pathlib.Path, out: pathlib.Path) -> None:
    """Writes the zip without this machine's times and users, and with files that all users can read."""
    fresh = out.with_name(f"{out.name}.new")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _files(tree):
            entry = zipfile.ZipInfo(path.relative_to(tree).as_posix(), MIN_ZIP_TIME)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            is_program = ".so" in path.suffixes or path.stat().st_mode & stat.S_IXUSR
            entry.external_attr = (stat.S_IFREG | (0o755 if is_program else 0o644)) << 16
            archive.writestr(entry, path.read_bytes())
    os.replace(fresh, out)
