import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.s3server import remote, s3, s3_process  # noqa: F401 - fixtures
from tests.serverkit import onnx_file

ROOT = Path(__file__).parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", default="1/1", help="run part I of N of the tests, whole files at a time")
    parser.addoption("--resume", default="", help="a folder that remembers what has passed at this state of the code")
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected files")


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with Ctrl-C ignored, and every child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if folder := config.getoption("--resume"):
        config.pluginmanager.register(_Resume(Path(folder)))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = map(int, config.getoption("--shard").split("/"))
    mine, others = [], []
    for item in items:
        number = int(hashlib.sha256(item.nodeid.split("::")[0].encode()).hexdigest(), 16) % parts
        (mine if number == part - 1 else others).append(item)
    items[:] = mine
    if others:
        config.hook.pytest_deselected(items=others)


class _Resume:
    """Leaves out the tests that have passed since any file of the project changed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        for suffix in ("py", "j2", "toml", "yaml"):
            for path in sorted(ROOT.glob(f"[!.]*/**/*.{suffix}")):
                digest.update(f"{path}\0".encode() + path.read_bytes())
        self._record = folder / digest.hexdigest()[:16]

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        passed = set(self._record.read_text().splitlines()) if self._record.exists() else set()
        done = [item for item in items if item.nodeid in passed]
        items[:] = [item for item in items if item.nodeid not in passed]
        if done:
            config.hook.pytest_deselected(items=done)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            with self._record.open("a") as record:
                record.write(f"{report.nodeid}\n")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = dict(os.environ)
    os.environ["REPOGEN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ.pop("REPOGEN_URL", None)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def invoke() -> Callable[..., Result]:
    """Run the command line in process; the exit code must be `code`."""

    def run(*arguments: str | Path, code: int = 0) -> Result:
        from repogen.cli import main

        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == code, f"exit {result.exit_code}\n{result.stdout}\n{result.stderr}"
        return result

    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with one batchable model, add.onnx (y = x + x, [N, W]), and a manifest for it."""
    onnx_file(
        tmp_path / "add.onnx",
        [("Add", ["x", "x"], ["y"], {})],
        [("x", "FLOAT", ["N", "W"])],
        [("y", "FLOAT", ["N", "W"])],
    )
    (tmp_path / "repogen.yaml").write_text(
        'triton: "26.08"\n'
        "repository: served/models\n"
        "defaults:\n"
        "  instances: [{kind: cpu}]\n"
        "models:\n"
        "  add:\n"
        "    source: add.onnx\n"
        "    max_batch_size: 4\n"
    )
    return tmp_path


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below `folder` with its content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
