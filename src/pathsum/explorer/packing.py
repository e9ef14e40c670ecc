"""Answers packed for a file: similar answers compressed together.

Answers to one question repeat each other's names and tokens, so they are compressed in blocks.
"""

import base64
import zlib
from dataclasses import dataclass, field

# Higher levels take three times as long and save 1 %.
COMPRESSION = 6
# Bytes after which a block is closed: the browser unpacks a whole block for its first answer.
BLOCK_BYTES = 2**19


@dataclass
class Packed:
    """Blocks of answers; `places` says of each answer its block, first byte and length."""

    _blocks: list[bytearray] = field(default_factory=list[bytearray])
    places: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    _open: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def blocks(self) -> tuple[bytes, ...]:
        """All blocks, in order."""
        return tuple(bytes(block) for block in self._blocks)

    def add(self, key: str, wire: bytes) -> None:
        """Add an answer to the block of its question."""
        name = key.partition(":")[0]
        number = self._open.get(name)
        if number is None or len(self._blocks[number]) + len(wire) > BLOCK_BYTES:
            number = self._open[name] = len(self._blocks)
            self._blocks.append(bytearray())
        self.places[key] = (number, len(self._blocks[number]), len(wire))
        self._blocks[number] += wire


def deflate(data: bytes) -> str:
    """Bytes as text: raw deflate, base64."""
    compressor = zlib.compressobj(COMPRESSION, zlib.DEFLATED, -zlib.MAX_WBITS)
    return base64.b64encode(compressor.compress(data) + compressor.flush()).decode("ascii")


def inflate(packed: str) -> bytes:
    """The inverse of `deflate`.

    >>> inflate(deflate(b"abc"))
    b'abc'
    """
    return zlib.decompress(base64.b64decode(packed), -zlib.MAX_WBITS)
