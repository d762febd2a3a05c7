"""Which index a policy may ask for."""

from enum import StrEnum


class IndexChoice(StrEnum):
    """Values of the policy key ``index``."""

    MEMORY = "memory"
    """Every fingerprint in RAM."""
    TABLE = "table"
    """Signatures in RAM, fingerprints in the redirection tables."""
    BLOOM = "bloom"
    """A filter in RAM; filters and signatures in a file, fingerprints in the redirection tables."""
