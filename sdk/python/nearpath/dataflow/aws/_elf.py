"""Finds the system requirements of native code in a package."""

import contextlib
import importlib
import os
from dataclasses import dataclass
from typing import Any, BinaryIO

# Marks a version that a library does not require (VER_FLG_WEAK in elf.h).
VER_FLG_WEAK = 2
MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "arm64"}


@dataclass(frozen=True)
class Native:
    """A library's architecture as named by Lambda, its newest required glibc, and whether it needs musl."""

    machine: str
    glibc: tuple[int, int]
    is_musl: bool = False


def read(file: BinaryIO) -> Native | None:
    """Reads the requirements of an ELF file; None for other files."""
    if file.read(4) != b"\x7fELF":
        return None
    elf = _elftools("elffile").ELFFile(file)
    machine = str(elf.header.e_machine)
    return Native(MACHINES.get(machine, machine), _glibc(elf), _is_musl(elf))


def find_mismatch(path: str, native: Native, machine: str, glibc: tuple[int, int]) -> str | None:
    """Returns the cause why Lambda cannot load a library, if there is one."""
    if native.machine != machine:
        return f"{path} is for {native.machine}, not {machine}"
    if native.is_musl:
        return f"{path} is for musl, and Lambda has glibc"
    if native.glibc > glibc:
        return f"{path} needs glibc {_text(native.glibc)}, and this runtime has {_text(glibc)}"
    return None


def _glibc(elf: Any) -> tuple[int, int]:
    """Returns the newest required glibc, from the section .gnu.version_r."""
    newest = (0, 0)
    for section in elf.iter_sections("SHT_GNU_verneed"):
        for _, versions in section.iter_versions():
            for version in versions:
                with contextlib.suppress(ValueError):
                    if not version["vna_flags"] & VER_FLG_WEAK:
                        newest = max(newest, _version(version.name))
    return newest


def _version(name: str) -> tuple[int, int]:
    """Parses GLIBC_2.34 as (2, 34). Raises ValueError for other libraries and private versions."""
    if name == "GLIBC_ABI_DT_RELR":  # packed relocations, which older versions cannot read
        return 2, 36
    library, _, version = name.partition("_")
    if library != "GLIBC":
        raise ValueError(name)
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def _is_musl(elf: Any) -> bool:
    tags = (tag for section in elf.iter_sections("SHT_DYNAMIC") for tag in section.iter_tags("DT_NEEDED"))
    return any(os.path.basename(tag.needed).startswith(("libc.musl", "ld-musl")) for tag in tags)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _elftools(module: str) -> Any:
    try:
        return importlib.import_module(f"elftools.elf.{module}")
    except ImportError:
        raise ImportError("the check of native code needs pyelftools: pip install pyelftools") from None
