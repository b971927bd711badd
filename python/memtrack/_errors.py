"""What this package raises. Invariant: the text is what the command line would say, without `error: `."""


class Error(RuntimeError):
    """Something that memtrack could not do: what, where, and what helps."""


class CaptureWarning(UserWarning):
    """Something that memtrack says of a capture that it read, such as that it is not complete."""
