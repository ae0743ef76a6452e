"""A source of chosen digits, for cases that random words reach once in a billion years."""

from __future__ import annotations


class Planted:
    """Gives the digits of ``value``, the most significant first, then zeros or ones for ever."""

    def __init__(self, digits: str = "", then: int = 0) -> None:
        self._digits, self._then = digits, str(then)

    def below(self, end: int) -> int:
        length = (end - 1).bit_length()
        taken = (self._digits + self._then * length)[:length]
        self._digits = self._digits[length:]
        return int(taken, 2) if length else 0
