"""The examples are scripts in a folder of their own: let the tests import them by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
