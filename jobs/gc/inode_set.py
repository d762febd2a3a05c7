"""A set of inode numbers, small also where there are millions of them."""

_PAGE_BITS = 9


class InodeSet:
    """Inode numbers as bits of pages of 512: file systems number near inodes alike.

    A directory for every twenty files takes some ten bytes; one alone in its page takes 200.
    """

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def __contains__(self, ino: int) -> bool:
        page = self._pages.get(ino >> _PAGE_BITS, 0)
        return bool(page >> (ino & ((1 << _PAGE_BITS) - 1)) & 1)

    def add(self, ino: int) -> bool:
        """Whether the number is new."""
        if ino in self:
            return False
        number = ino >> _PAGE_BITS
        self._pages[number] = self._pages.get(number, 0) | 1 << (ino & ((1 << _PAGE_BITS) - 1))
        return True

    def clear(self) -> None:
        self._pages.clear()
