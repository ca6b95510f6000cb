"""Where templates/ and loadtests/ are: in the checkout, or inside the installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def _folder(name: str) -> Path:
    checkout = _PACKAGE.parent / name
    # An editable install leaves an old copy inside the package: the checkout wins.
    return checkout if (_PACKAGE.parent / "pyproject.toml").is_file() else _PACKAGE / f"_{name}"


TEMPLATES = _folder("templates")
LOADTESTS = _folder("loadtests")
