"""Uploads large states to an object store in parts, with bounded memory."""

import importlib
import io
from typing import Any

# Size and concurrency of parts. Their product bounds the memory besides the state.
PART_BYTES, MAX_CONCURRENT_PARTS = 8 << 20, 4


class Joined(io.RawIOBase):
    """Reads a header and a state in sequence, without a copy of the state."""

    def __init__(self, header: bytes, state: memoryview) -> None:
        self._pieces, self._size, self._at = (memoryview(header), state), len(header) + len(state), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, into: Any) -> int:
        view, at = memoryview(into), self._at
        for piece in self._pieces:
            if at < len(piece):
                count = min(len(view), len(piece) - at)
                view[:count] = piece[at : at + count]
                self._at += count
                return count
            at -= len(piece)
        return 0


def transfer() -> Any:
    config = import_optional("boto3.s3.transfer").TransferConfig(multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, max_concurrency=MAX_CONCURRENT_PARTS)
    config.max_in_memory_upload_chunks = MAX_CONCURRENT_PARTS
    return config


def import_optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError("checkpoints at s3:// need the package boto3: pip install boto3") from error
