"""The one exception that a command line turns into a paragraph instead of a stack trace."""


class InputError(ValueError):
    """What was asked for cannot be done: bad data, a bad parameter, or a machine too small for it.

    Raised with a message that says what failed, what was expected and received, and what to do.
    Command lines print it and exit with code 2; anything else is a defect and keeps its stack trace.
    """
