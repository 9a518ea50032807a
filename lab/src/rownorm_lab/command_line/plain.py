"""Output where only ASCII can be printed (PYTHONIOENCODING=ascii): ``us`` for µs, ``x`` for a multiplication sign.

rich fails at a character that the output cannot have, and click prints UTF-8 to an output that says that it is ASCII.
So such an output gets an encoding of its own, which both take as it is.
"""

from __future__ import annotations

import codecs
import io
import sys

NAME = "rownorm_ascii"
PLAIN = {
    "µ": "u",
    "±": "+-",
    "…": "...",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{EN DASH}": "-",
    "\N{NO-BREAK SPACE}": " ",
}
_TABLE = str.maketrans(PLAIN)


def plain(text: str) -> bytes:
    """The text in ASCII; a character without a plain one is a question mark."""
    return text.translate(_TABLE).encode("ascii", "replace")


class _Encoder(codecs.IncrementalEncoder):
    def encode(self, input: str, final: bool = False) -> bytes:
        return plain(input)


def _find(name: str) -> codecs.CodecInfo | None:
    if name != NAME:
        return None
    ascii = codecs.lookup("ascii")
    return codecs.CodecInfo(
        name=NAME,
        encode=lambda text, errors="strict": (plain(text), len(text)),
        decode=ascii.decode,
        incrementalencoder=_Encoder,
        incrementaldecoder=ascii.incrementaldecoder,
    )


def use_plain_characters() -> None:
    """Give stdout and stderr that encoding if theirs is ASCII."""
    codecs.register(_find)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name == "ascii":
            stream.reconfigure(encoding=NAME)
