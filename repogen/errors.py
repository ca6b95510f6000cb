"""Every error that is the user's to mend, each with its exit code.

An error says what is wrong, where, and what to do. `cli.main` prints it in one place and exits; anything
else that escapes is a bug in repogen and exits 70 with its traceback kept in a log file.
"""


class RepogenError(Exception):
    """What went wrong, where it is (`file:line key`), and what to do about it."""

    exit_code = 2

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        self.message = message
        self.where = where
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text


class Refused(RepogenError):
    """A finding or a refusal: the command did its work and the answer is no."""

    exit_code = 1


class ManifestError(RepogenError):
    """The manifest is wrong."""


class ModelError(RepogenError):
    """A model file cannot be read, or is not what the manifest says."""


class MissingExtra(RepogenError):
    """A package that this command needs is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed", hint=f"pip install 'repogen[{extra}]'")


class ConversionError(RepogenError):
    """A model could not be converted."""

    exit_code = 3


class ServerError(RepogenError):
    """The server cannot be reached, did not start, or refused."""

    exit_code = 4


class Locked(RepogenError):
    """Another run is writing the same repository."""

    exit_code = 5
