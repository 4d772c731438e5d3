"""Requirements of tests. A skip is reported to the reader and to NEARPATH_SKIP_LOG."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def skip(place, reason):
    """Ends the test, or all of a class or module. `make test` prints and counts what was skipped."""
    reason = reason.strip().replace("\n", "; ")
    print(f"SKIP {place}: {reason}", file=sys.stderr)
    if os.environ.get("NEARPATH_SKIP_LOG"):
        with open(os.environ["NEARPATH_SKIP_LOG"], "a") as log:
            log.write(f"{place}: {reason}\n")
    raise unittest.SkipTest(reason)


def packages(example):
    """Returns a folder with the packages of an example's requirements.txt, installed once per Python."""
    requirements = (ROOT / "examples" / example / "requirements.txt").read_text()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "examples"
    folder = target / f"{example}-{sys.implementation.cache_tag}"
    if folder.exists() and (folder / "installed.txt").read_text() == requirements:
        return str(folder)
    target.mkdir(parents=True, exist_ok=True)
    fresh = pathlib.Path(tempfile.mkdtemp(dir=target))
    try:
        install(example, fresh)
        fresh.chmod(0o755)  # tests of other users read it
        (fresh / "installed.txt").write_text(requirements)
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return str(folder)


def install(example, folder):
    requirements = str(ROOT / "examples" / example / "requirements.txt")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "10", "--disable-pip-version-check"]
    quiet = ["--no-warn-conflicts", "--root-user-action=ignore"]
    done = subprocess.run([*pip, *quiet, "--target", str(folder), "-r", requirements], capture_output=True, text=True)
    if done.returncode != 0:
        skip(f"examples/{example}", f"requirements.txt cannot be installed: {done.stderr}")
