"""What a user meets when a kernel cannot run."""


class KernelUnavailableError(ValueError):
    """The kernel asked for cannot run here; the message says what is missing and what works."""


def unavailable(problem: str) -> KernelUnavailableError:
    """The error for `problem`, which says what is missing, where, and what to do about it."""
    return KernelUnavailableError(f"{problem}; these work: pytorch")
