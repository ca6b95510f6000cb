"""Where templates/ and loadtests/ are: in the checkout, or inside the installed wheel."""

import importlib.util
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).parent


def _folder(name: str) -> Path:
    checkout = _PACKAGE.parent / name
    # An editable install leaves an old copy inside the package: the checkout wins.
    return checkout if (_PACKAGE.parent / "pyproject.toml").is_file() else _PACKAGE / f"_{name}"


TEMPLATES = _folder("templates")
LOADTESTS = _folder("loadtests")


def plan_engine() -> ModuleType:
    """Return the module that runs plans, which lies among the templates because Triton's stub needs it as a file."""
    spec = importlib.util.spec_from_file_location("plan_engine", TEMPLATES / "embedded" / "plan_engine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
