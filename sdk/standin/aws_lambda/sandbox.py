"""The sandbox of an environment: bubblewrap, read-only code, its own /tmp and Lambda's packages only."""

import importlib.metadata
import os
import re
import site
import sys


def sandbox(code, variables):
    """The command of an environment, by bubblewrap."""
    python = os.path.realpath(sys._base_executable)
    prefix = os.path.realpath(sys.base_prefix)
    bare = [
        "bwrap",
        "--die-with-parent",
        "--unshare-pid",
        "--unshare-ipc",
        "--new-session",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
    ]
    for folder in ("/usr", "/bin", "/lib", "/lib64", "/etc", *([] if prefix.startswith("/usr") else [prefix])):
        bare += ["--ro-bind-try", folder, folder]
    for folder in filter(os.path.isdir, site.getsitepackages([sys.base_prefix])):  # Lambda has none of it
        bare += ["--tmpfs", os.path.realpath(folder)]
    for source, name in runtime_packages():
        bare += ["--ro-bind", source, f"/var/runtime/{name}"]
    bare += ["--ro-bind", code, "/var/task", "--chdir", "/var/task", "--clearenv"]
    for name, value in variables.items():
        bare += ["--setenv", name, value]
    return [*bare, python, "-m", "awslambdaric", variables["_HANDLER"]]


def runtime_packages():
    """Returns (path, name) of the packages in Lambda's Python runtime: its client, boto3 and dependencies."""
    done, todo, found = set(), ["awslambdaric", "boto3"], {}
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        distribution = importlib.metadata.distribution(name)
        todo += [re.split(r"[^\w.-]", need)[0] for need in distribution.requires or () if "extra ==" not in need]
        for file in distribution.files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__"):
                found[top] = str(distribution.locate_file(top))
    return [(path, name) for name, path in sorted(found.items())]
