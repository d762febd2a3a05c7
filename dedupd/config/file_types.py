"""The type of a file, by its name."""


def extension_of(name: str) -> str:
    """What follows the last dot of a name, in lower case; empty where nothing does."""
    stem, dot, extension = name.rpartition(".")
    return extension.lower() if dot and stem else ""
