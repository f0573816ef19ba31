"""What a user can get wrong, apart from the data."""


class UsageError(ValueError):
    """The command cannot be carried out as given; the message says what to do."""
