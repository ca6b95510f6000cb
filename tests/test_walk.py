"""A newcomer's walk: the commands of README.md and docs/*.md, in order, in a clean folder, as they are written.

A page says what differs in a comment before the block: `<!-- walk: exit 1 -->`, `<!-- walk: beside serve -->` (the page's
manifest is served meanwhile), `<!-- walk: beside triton -->` (a Triton has the published repository meanwhile),
`<!-- walk: until Ctrl-C -->`. What is not run stands in NOT_RUN, with the reason.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import click
import pytest

from repogen.cli import main
from tests import s3server
from tests.conftest import ROOT
from tests.serverkit import needs_server

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = ROOT / "examples"
BIN = Path(sys.executable).parent

DOWNLOADS = "downloads an environment or models, which the tests have; scripts/setup does it in CI"
CLUSTER = "needs a Kubernetes cluster"
DOCKER = "needs Docker"
MACHINES = "needs several machines"
NOT_RUN = {
    ("README.md", "make test"): "runs these tests",
    ("README.md", "pip install"): DOWNLOADS,
    ("howto.md", "docker compose"): DOCKER,
    ("howto.md", "kubectl apply"): CLUSTER,
    ("load.md", "locust -f loadtests/locustfile.py --host"): "a web page, until somebody stops it",
    ("load.md", "repogen bench -m text_rec --rate 20000"): MACHINES,
    ("load.md", "locust -f loadtests/locustfile.py --worker"): MACHINES,
    ("load.md", "SHAPE=Spike"): "the load shape takes two minutes",
    ("monitoring.md", "docker compose"): DOCKER,
    ("pipelines.md", "python examples/fetch_models.py --pipelines"): DOWNLOADS,
    ("production.md", "kubectl"): CLUSTER,
    ("tuner.md", "repogen tune --url"): "runs for minutes",
    ("tuner.md", "repogen tune --all --apply"): "runs for minutes",
}
SHORTER = {  # what is long or heavy on a machine of two cores
    "make demo ": "scripts/demo ",  # without the environment and the models, which the tests have
    "--duration 30": "--duration 2",
    "--rate 200": "--rate 20",
    "tune -m text_rec": "tune -m text_rec --budget '3 runs'",
}
SLOW = {"howto.md", "load.md", "pipelines.md", "tuner.md"}  # over 20 s
OWN_MANIFEST = {"load.md", "tuner.md"}  # there the reader has a repogen.yaml with text_rec

_BLOCK = re.compile(
    r"(?:<!-- walk: (?P<mark>[^\n]*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_OPENS = re.compile(r"<<'?(\w+)'?")


@dataclass(frozen=True)
class Step:
    """One command of a page, and what the page says of it."""

    page: str
    line: int
    text: str
    block: int
    mark: str = ""
    shown: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why it is not run, or ""."""
        return next(
            (why for (page, start), why in NOT_RUN.items() if page == self.page and self.text.startswith(start)), ""
        )


def steps(page: Path) -> Iterator[Step]:
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        first = text[: block.start("text")].count("\n") + 1
        mark = block["mark"] or ""
        if block["kind"] == "console":
            yield from _session(page.name, first, block["text"].splitlines(), mark)
        elif block["kind"] in ("sh", "bash"):
            for line, command in _commands(block["text"].splitlines(), first):
                yield Step(page.name, line, command, first, mark)


def _session(page: str, first: int, lines: list[str], mark: str) -> Iterator[Step]:
    starts = [index for index, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        ((_, command), *_) = _commands([lines[start][2:], *lines[start + 1 : end]], 0)
        shown = lines[start + 1 + command.count("\n") : end]
        yield Step(page, first + start, command, first, mark, tuple(line for line in shown if line.strip(" …")))


def _commands(lines: list[str], first: int) -> Iterator[tuple[int, str]]:
    """Put lines together that go on: after a backslash, and until the end of a here-document."""
    index = 0
    while index < len(lines):
        start = index
        while lines[index].rstrip().endswith("\\"):
            index += 1
        if opened := _OPENS.search(lines[index]):
            index = lines.index(opened[1], index)
        index += 1
        command = "\n".join(lines[start:index])
        if command.strip() and not command.startswith("#"):
            yield first + start, command


class Walk:
    """A clone of the project as a newcomer has it, and a shell in it with nothing of ours in its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = self.here = folder / "repogen"
        shutil.copytree(
            EXAMPLES, self.folder / "examples", ignore=shutil.ignore_patterns("models", "__pycache__", "out")
        )
        (self.folder / "examples" / "models").symlink_to(EXAMPLES / "models")
        for name in ("loadtests", "model_repository", "docker", "scripts"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("[0-9]*", "__pycache__"))
        (folder / "home").mkdir()
        self._pwd = folder / "pwd"
        self.address = ""
        self.environment = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "REPOGEN_CACHE": str(folder / "cache"),
            "TMPDIR": str(folder),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
        }

    def own_manifest(self) -> None:
        text = (EXAMPLES / "repogen.yaml").read_text()
        text = text.replace("source: models/", "source: examples/models/").replace(
            "../model_repository", "model_repository"
        )
        (self.folder / "repogen.yaml").write_text(text.replace("  text_rec:", _TUNED, 1))

    def run(self, step: Step) -> str:
        """Run one command where the last one left the shell; its exit code is what the page says."""
        started, text = time.monotonic(), step.text
        for long, short in SHORTER.items():
            text = text.replace(long, short)
        for host in ("127.0.0.1:8001", "triton:8001"):
            text = text.replace(host, self.address or host)
        script = f'{text}\ncode=$?; pwd > "{self._pwd}"; exit $code'
        with self._started(["sh", "-c", script]) as process:
            timer = threading.Timer(240, os.killpg, (process.pid, signal.SIGKILL))
            if step.mark == "until Ctrl-C":
                timer = threading.Timer(8, _interrupt, (process.pid,))
            timer.start()
            output, errors = process.communicate()
            timer.cancel()
            timer.join()
        expected = int(step.mark.removeprefix("exit ")) if step.mark.startswith("exit ") else 0
        if ("repogen bench" in text and "void: " in output) or "no run was valid" in output:
            expected = 1  # this machine was too busy to measure anything
        told = f"{step.page}:{step.line}: {text}\nexit {process.returncode}, not {expected}\n{output}\n{errors}"
        assert process.returncode == expected, told
        sys.stdout.write(f"{time.monotonic() - started:6.1f} s  {step.text.splitlines()[0]}\n")
        self.here = Path(self._pwd.read_text().strip()) if self._pwd.exists() else self.here
        return output + errors

    @contextmanager
    def beside(self, mark: str) -> Iterator[None]:
        """Have the server at hand that the page says runs meanwhile."""
        with self._triton() if mark == "beside triton" else self._serve() as self.address:
            yield
        self.address = ""

    @contextmanager
    def _triton(self) -> Iterator[str]:
        from repogen import server

        with server.start(self.here / "model_repository", timeout=120) as triton:
            yield triton.grpc

    @contextmanager
    def _serve(self) -> Iterator[str]:
        with self._started(["repogen", "serve", "-q"]) as process:
            for line in process.stdout:
                if found := re.match(r"gRPC (\S+)", line):
                    break
            else:
                pytest.fail(process.stderr.read())
            yield found[1]
            process.terminate()
            process.communicate(timeout=30)

    @contextmanager
    def _started(self, command: list[str]) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            command,
            cwd=self.here,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


_TUNED = "  text_rec:\n    tune: {slo: {p90: 4s}, rate: 8/s}"  # what two busy cores hold


def _interrupt(group: int) -> None:
    """Press Ctrl-C: every process of the group gets it, and the shell itself outlives it as an interactive one does."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == group and int(entry.parent.name) != group:
            os.kill(int(entry.parent.name), signal.SIGINT)


def _alike(text: str) -> str:
    """Numbers differ from run to run, and so do the widths that they take."""
    return " ".join(re.sub(r"\d[\d.,]*(e-?\d+)?", "0", text).split())


def _page(path: Path):
    return pytest.param(path, id=path.name, marks=[pytest.mark.slow] if path.name in SLOW else [])


@pytest.mark.models
@pytest.mark.server
@needs_server[1]
@pytest.mark.skipif(
    not (EXAMPLES / "models" / "magika.onnx").exists(), reason="python examples/fetch_models.py brings them"
)
@pytest.mark.parametrize("path", [_page(path) for path in PAGES if any(True for _ in steps(path))])
def test_the_commands_of_a_page_run_in_order(path, tmp_path):
    walk = Walk(tmp_path)
    if path.name in OWN_MANIFEST:
        walk.own_manifest()
    if path.name == "pipelines.md" and not (EXAMPLES / "models" / "minilm.onnx").exists():
        pytest.skip("examples/pipelines/export_minilm.py has not been run")
    with _bucket(walk, tmp_path) if path.name == "howto.md" else nullcontext():
        for _, block in groupby((step for step in steps(path) if not step.reason), lambda step: step.block):
            mine = list(block)
            with walk.beside(mine[0].mark) if mine[0].mark.startswith("beside") else nullcontext():
                for step in mine:
                    _compare(step, walk.run(step))


def _compare(step: Step, said: str) -> None:
    missing = [line for line in step.shown if _alike(line) not in _alike(said)]
    assert not missing, f"{step.page}:{step.line} shows what is not said: {missing}\n{said}"


@contextmanager
def _bucket(walk: Walk, folder: Path) -> Iterator[None]:
    """Give the walk a real S3 server with the bucket of the page."""
    if s3server.needs_s3.args[0]:
        pytest.skip(s3server.needs_s3.kwargs["reason"])
    with s3server.s3_server(folder) as running:
        walk.environment |= s3server.environment(running.url)
        s3server.reset(running.url)
        yield


STEPS = [step for path in PAGES for step in steps(path)]


def test_what_is_not_run_is_in_the_pages():
    for page, start in NOT_RUN:
        assert any(step.page == page and step.text.startswith(start) for step in STEPS), f"{page} has no {start!r}"


def test_every_mark_is_known():
    known = re.compile(r"(exit \d+|beside serve|beside triton|until Ctrl-C)?")
    assert [step for step in STEPS if not known.fullmatch(step.mark)] == []
    for path in PAGES:
        text = path.read_text()
        assert text.count("<!-- walk:") == sum(bool(block["mark"]) for block in _BLOCK.finditer(text)), path


def test_every_fence_of_commands_is_walked():
    """A fence without a language, or of another one, hides no command."""
    for path in PAGES:
        for block in _BLOCK.finditer(path.read_text()):
            if block["kind"] not in ("sh", "bash", "console"):
                assert not re.search(
                    r"^(\$ )?(repogen|locust|docker compose|kubectl|pip) ", block["text"], re.MULTILINE
                ), path


def repogen_calls(text: str) -> Iterator[list[str]]:
    """Yield the arguments of each `repogen …` in a shell command, also of one that another runs."""
    lexer = shlex.shlex(text.split("<<", maxsplit=1)[0], posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split = True
    before, words = "--", list(lexer)
    for index, word in enumerate(words):
        if "repogen " in word:
            yield from repogen_calls(word)
        if word == "repogen" and (before == "--" or set(before) <= set(";&|()")):
            rest = words[index + 1 :]
            ends = [at for at, one in enumerate(rest) if one == "--" or set(one) <= set(";&|()<>")]
            yield rest[: ends[0]] if ends else rest
        before = word


def parsed(arguments: list[str]) -> click.Context:
    """Read arguments as the command line does. Raises click.UsageError."""
    command: click.Command = main
    context = click.Context(main, info_name="repogen")
    while isinstance(command, click.Group):
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    return command.make_context(context.info_name, arguments, parent=context.parent)


@pytest.mark.parametrize(
    "step", [pytest.param(step, id=f"{step.page}:{step.line}") for step in STEPS if "repogen " in step.text]
)
def test_every_command_fits_the_command_line(step):
    for arguments in repogen_calls(step.text.replace("\\\n", " ")):
        parsed(arguments)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_commands_in_the_text_exist_with_every_flag(path):
    prose = _BLOCK.sub("", path.read_text())
    for text in re.findall(r"`repogen ([a-z][^`]*)`", " ".join(prose.split())):
        words = text.split()
        command = main.commands.get(words[0])
        assert command is not None, f"{path.name}: repogen {words[0]}"
        if isinstance(command, click.Group):
            command = command.commands.get(words[1], command) if len(words) > 1 else command
        known = {name for option in command.params for name in option.opts}
        flags = [
            word.split("=")[0]
            for word in words[1 : words.index("--") if "--" in words else None]
            if word.startswith("-")
        ]
        assert set(flags) <= known, f"{path.name}: repogen {text}"
