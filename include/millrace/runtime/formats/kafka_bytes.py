"""Numbers, texts and lists as Kafka's message formats write them, read from bytes that nobody vouches for."""

from __future__ import annotations

from collections.abc import Iterator

_LONGEST_VARINT = 5  # bytes of an unsigned number of 32 bits


class MalformedError(ValueError):
    """The bytes are not what they are said to be; the message holds nothing of their text."""


class Reader:
    """Reads from front to back. Whatever counts or lengths say, no more is read than there is.

    `compact` is how flexible versions write (KIP-482): lengths as unsigned varints, one greater than they are.
    """

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    @property
    def left(self) -> int:
        """How many bytes are unread."""
        return len(self._data) - self._at

    def end(self) -> None:
        """Nothing may follow.

        Raises:
            MalformedError: something does.
        """
        if self.left:
            raise MalformedError(f"{self.left} bytes too many")

    def raw(self, count: int) -> bytes:
        """So many bytes."""
        if not 0 <= count <= self.left:
            raise MalformedError(f"{count} bytes are announced where {self.left} are left")
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self, size: int) -> int:
        return int.from_bytes(self.raw(size), "big", signed=True)

    def int8(self) -> int:
        """A number of 8 bits."""
        return self._number(1)

    def int16(self) -> int:
        """A number of 16 bits."""
        return self._number(2)

    def int32(self) -> int:
        """A number of 32 bits."""
        return self._number(4)

    def int64(self) -> int:
        """A number of 64 bits."""
        return self._number(8)

    def version(self, least: int, most: int) -> int:
        """The version that a value begins with, within what is known here."""
        found = self.int16()
        if not least <= found <= most:
            raise MalformedError(f"value version {found} is not known")
        return found

    def varint(self) -> int:
        """An unsigned number of up to 32 bits, seven a byte."""
        found = 0
        for place in range(_LONGEST_VARINT):
            byte = self.raw(1)[0]
            found |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return found
        raise MalformedError("a number does not end")

    def string(self, *, compact: bool = False) -> str:
        """A text, which must be there."""
        found = self.nullable_string(compact=compact)
        if found is None:
            raise MalformedError("a text is missing")
        return found

    def last_string(self) -> str:
        """A text after which nothing may follow."""
        found = self.string()
        self.end()
        return found

    def nullable_string(self, *, compact: bool = False) -> str | None:
        """A text or none."""
        length = self.varint() - 1 if compact else self.int16()
        if length == -1:
            return None
        try:
            return self.raw(length).decode()
        except UnicodeDecodeError:
            raise MalformedError("a text is not UTF-8") from None

    def blob(self, *, compact: bool = False) -> bytes:
        """Bytes, which must be there."""
        return self.raw(self.varint() - 1 if compact else self.int32())

    def items(self, *, compact: bool = False, each_bytes: int = 1) -> Iterator[int]:
        """The places of a list, to be read one by one; each has at least so many bytes."""
        count = self.varint() - 1 if compact else self.int32()
        if count < 0 or count * each_bytes > self.left:
            raise MalformedError(f"{count} items are announced where {self.left} bytes are left")
        return iter(range(count))

    def tags(self) -> dict[int, bytes]:
        """The tagged fields that end a flexible structure, undecoded (KIP-482)."""
        count = self.varint()
        if 2 * count > self.left:
            raise MalformedError(f"{count} tagged fields are announced where {self.left} bytes are left")
        found = {}
        for _ in range(count):
            tag = self.varint()
            found[tag] = self.raw(self.varint())
        return found
