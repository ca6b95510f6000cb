"""The command line: each verb's options, and the one place where errors become exit codes."""

import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from repogen import __version__
from repogen.console import Console
from repogen.errors import RepogenError

_INTERRUPTED = 130
_BUG = 70


def _call(verb: str, **arguments: Any) -> None:
    """Run `repogen.commands.VERB.VERB(...)`: imported only now, so that `--help` stays fast."""
    options = {key: arguments.pop(key) for key in ("as_json", "quiet", "verbose")}
    console = Console(**options)
    try:
        code = getattr(import_module(f"repogen.commands.{verb}"), verb)(console=console, **arguments)
    except RepogenError as error:
        console.error(error)
        code = error.exit_code
    except KeyboardInterrupt:
        console.note("interrupted")
        code = _INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away: nothing more to say to it
        code = 0
    except Exception as error:  # a bug of ours: the user gets a sentence, the log the traceback
        console.error(RepogenError(f"a bug in repogen: {type(error).__name__}: {error}", hint=f"traceback in {_log()}"))
        code = _BUG
    sys.exit(code or 0)


def _log() -> Path:
    with tempfile.NamedTemporaryFile("w", prefix="repogen-", suffix=".log", delete=False) as file:
        file.write(f"repogen {__version__}, Python {sys.version}\n{sys.argv}\n\n{traceback.format_exc()}")
    return Path(file.name)


def _common(command: Any) -> Any:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout."),
        click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
        click.option("-v", "--verbose", count=True, help="More detail; twice for all of it."),
    ):
        command = option(command)
    return command


_FILE = Path("repogen.yaml")
_manifest = click.option(
    "-f", "--file", "manifest", type=click.Path(path_type=Path), default=_FILE, show_default=True, help="The manifest."
)
_models = click.option("-m", "--model", "only", multiple=True, help="Only this model; repeat for more.")
_url = click.option("--url", help="Triton's gRPC address; by default the server that `repogen serve` runs.")
_jobs = click.option("-j", "--jobs", type=click.IntRange(1), default=2, show_default=True, help="Models at a time.")
_overwrite = click.option("--overwrite", is_flag=True, help="Also folders edited by hand or not written by repogen.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="repogen")
def main() -> None:
    """One manifest in, a Triton model repository out: built, checked, served, loaded and tuned."""


@main.command(epilog="Example: repogen inspect models/rec.onnx")
@click.argument("path", metavar="MODEL.onnx", type=click.Path(path_type=Path))
@_common
def inspect(**arguments: Any) -> None:
    """Say what an ONNX file is: tensors, batching proved by running it, operators."""
    _call("inspect", **arguments)


@main.command(epilog="Example: repogen plan -f examples/repogen.yaml")
@_manifest
@_jobs
@_overwrite
@click.option("--exit-code", is_flag=True, help="Exit 1 when there is something to do.")
@_common
def plan(**arguments: Any) -> None:
    """Show what a sync would change in the repository, and why. Changes nothing."""
    _call("plan", **arguments)


@main.command(epilog="Example: repogen sync -f examples/repogen.yaml")
@_manifest
@_jobs
@_overwrite
@_common
def sync(**arguments: Any) -> None:
    """Make the repository what the manifest says: print the plan, then do it."""
    _call("sync", **arguments)


@main.command(epilog="Examples: repogen serve; repogen serve -- repogen verify")
@_manifest
@_models
@_jobs
@click.option("--grpc-port", type=click.IntRange(1, 65535), help="By default a free one.")
@click.option("--http-port", type=click.IntRange(1, 65535), help="By default a free one.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="By default a free one.")
@click.option("--timeout", type=float, default=120.0, show_default=True, help="Seconds to wait for ready.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@_common
def serve(**arguments: Any) -> None:
    """Run a real Triton on this machine, no Docker and no GPU needed: for development only.

    With a COMMAND after --, run that beside the server (its address in REPOGEN_URL), then stop both.
    """
    _call("serve", **arguments)


@main.command(epilog="Example: repogen verify --url 127.0.0.1:8001")
@_manifest
@_models
@_url
@_jobs
@click.option("--seed", type=int, default=0, show_default=True, help="Of the made-up inputs.")
@_common
def verify(**arguments: Any) -> None:
    """Compare the answers of a live server with ONNX Runtime's, per output, at batch 1, 2 and the maximum."""
    _call("verify", **arguments)


@main.command(epilog="Example: repogen bench -m text_rec --users 16 --duration 10")
@_manifest
@_models
@_url
@_jobs
@click.option("--users", type=click.IntRange(1), default=8, show_default=True, help="Clients that wait for answers.")
@click.option("--duration", type=float, default=10.0, show_default=True, help="Seconds, a model.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Samples a request.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the made-up inputs.")
@_common
def bench(**arguments: Any) -> None:
    """Load a live server over gRPC with Locust: rate, percentiles, and what Triton did meanwhile."""
    _call("bench", **arguments)


@main.command(epilog="Example: repogen schema > repogen.schema.json")
@_common
def schema(**arguments: Any) -> None:
    """Print the JSON schema of the manifest, from which editors complete."""
    _call("schema", **arguments)
