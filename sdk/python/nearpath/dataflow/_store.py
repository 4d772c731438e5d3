"""Where checkpoints are kept."""

from . import _native


def store(url: str) -> _native.Checkpoints:
    """A folder."""
    return _native.Checkpoints(url)
