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


def _bytes(_context: click.Context, _option: click.Parameter, text: str) -> int:
    from repogen.units import size_bytes

    try:
        return size_bytes(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _seconds(_context: click.Context, _option: click.Parameter, text: str | None) -> float:
    from repogen.units import microseconds

    try:
        seconds = microseconds(text) / 1e6 if text is not None else 0.0
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if text is not None and not seconds:
        raise click.BadParameter(f"{text} is no pause: write 30s, for example")
    return seconds


_memory = click.option(
    "--memory",
    default="4GiB",
    show_default=True,
    callback=_bytes,
    help="What reading or running one model may take; beyond it, batching is not proved.",
)
_wait = click.option("--wait", type=click.FloatRange(0), default=0.0, help="Seconds to wait for another run.")
_urls = click.option("--url", "urls", multiple=True, help="Triton's gRPC address: load and prove; repeat for more.")
_load_timeout = click.option(
    "--load-timeout", type=click.FloatRange(0.1), default=600.0, show_default=True, help="Seconds that a load may take."
)
_prune = click.option("--prune", is_flag=True, help="Also remove the models that left the manifest.")
_yes = click.option("--yes", is_flag=True, help="Remove models also where it is more than 30 % of them.")
_overwrite = click.option("--overwrite", is_flag=True, help="Also folders edited by hand or not written by repogen.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="repogen")
def main() -> None:
    """One manifest in, a Triton model repository out: built, checked, served, loaded and tuned."""


@main.command(epilog="Example: repogen init models/ --kind cpu")
@click.argument("paths", metavar="[MODEL.onnx or FOLDER]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=_FILE, show_default=True)
@click.option("--kind", type=click.Choice(["gpu", "cpu"]), default="gpu", show_default=True, help="Of the instances.")
@click.option("--force", is_flag=True, help="Overwrite an existing manifest.")
@_jobs
@_common
def init(**arguments: Any) -> None:
    """Write a manifest for ONNX files, every value commented with why it was chosen."""
    _call("init", **arguments)


@main.command(epilog="Example: repogen inspect models/rec.onnx")
@click.argument("path", metavar="MODEL.onnx", type=click.Path(path_type=Path))
@click.option("--tensorrt", is_flag=True, help="Also try it with TensorRT-RTX's parser and builder: no GPU needed.")
@_memory
@_common
def inspect(**arguments: Any) -> None:
    """Say what an ONNX file is: tensors, batching proved by running it, operators."""
    _call("inspect", **arguments)


@main.command(epilog="Example: repogen plan -f examples/repogen.yaml")
@_manifest
@_jobs
@_overwrite
@_prune
@_memory
@click.option("--exit-code", is_flag=True, help="Exit 1 when there is something to do.")
@_common
def plan(**arguments: Any) -> None:
    """Show what a sync would change in the repository, and why. Changes nothing."""
    _call("plan", **arguments)


@main.command(epilog="Examples: repogen sync; repogen sync --url triton:8001 --prune; repogen sync --watch 30s")
@_manifest
@_jobs
@_overwrite
@_prune
@_yes
@_wait
@_urls
@click.option("--no-load", is_flag=True, help="Publish only, whatever --url says.")
@click.option("--shadow", multiple=True, metavar="MODEL", help="Let its new version answer beside the old one first.")
@click.option("--watch", callback=_seconds, help="Go on: look for changed and new sources every so often (30s).")
@_load_timeout
@_memory
@_common
def sync(**arguments: Any) -> None:
    """Make the repository what the manifest says: print the plan, then do it.

    With --url every server loads what changed and proves that it serves it, else the previous generation returns.
    With --shadow the new version must answer warm traffic, under another name, before the old one is exchanged.
    """
    _call("sync", **arguments)


@main.command(epilog="Example: repogen build -m text_rec")
@_manifest
@_models
@_jobs
@click.option("--index", type=click.IntRange(0), help="Only this one of the --model, from 0: for indexed jobs.")
@_common
def build(**arguments: Any) -> None:
    """Build the TensorRT plans that are not in the cache yet. Publishes nothing."""
    _call("build", **arguments)


@main.command(epilog="Example: repogen history")
@_manifest
@_common
def history(**arguments: Any) -> None:
    """List what each sync changed in the repository, and what can be rolled back to."""
    _call("history", **arguments)


@main.command(epilog="Examples: repogen rollback; repogen rollback --to 3 --url triton:8001")
@_manifest
@click.option("--to", "number", type=click.IntRange(0), help="The generation to return to; by default the one before.")
@click.option("--yes", is_flag=True, help="Also where models would go that did not exist then.")
@_wait
@_urls
@_load_timeout
@_common
def rollback(**arguments: Any) -> None:
    """Put the models back that the last sync displaced, byte for byte."""
    _call("rollback", **arguments)


@main.command(epilog="Examples: repogen gc --dry-run; repogen gc --keep 0")
@_manifest
@click.option("--keep", type=click.IntRange(0), help="Previous generations of each model; by default the manifest's.")
@click.option("--cache-size", default="50GiB", show_default=True, callback=_bytes, help="Of built plans; of sources.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@_wait
@_common
def gc(**arguments: Any) -> None:
    """Remove previous generations beyond those to keep, old records, leftovers, and what the caches have too much.

    What is served, what can be rolled back to, and every plan that repogen.lock names stays.
    """
    _call("gc", **arguments)


@main.command(
    epilog="Examples: repogen check model_repository --server 26.08; "
    "repogen check --profile production --deployment docker-compose.yml"
)
@click.argument("repository", type=click.Path(path_type=Path), default=Path("model_repository"))
@click.option("--server", default="26.08", show_default=True, help="A release (26.08), a version (2.51), or embedded.")
@click.option(
    "--profile",
    type=click.Choice(["development", "production"]),
    default="development",
    show_default=True,
    help="production: also how it is served.",
)
@click.option(
    "--deployment",
    "deployments",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A compose file, or a folder of Kubernetes files; repeat for more.",
)
@_common
def check(**arguments: Any) -> None:
    """Find in any repository, ours or hand-written, what the server would refuse or silently get wrong."""
    _call("check", **arguments)


@main.command(epilog="Examples: repogen serve; repogen serve -- repogen verify; repogen serve --docker")
@_manifest
@_models
@_jobs
@click.option("--grpc-port", type=click.IntRange(1, 65535), help="By default a free one.")
@click.option("--http-port", type=click.IntRange(1, 65535), help="By default a free one.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), help="By default a free one.")
@click.option("--timeout", type=float, help="Seconds to wait for ready: 120; with --docker by the files' size.")
@click.option("--cold-start", is_flag=True, help="Time each model's first request, without and with its warm-up.")
@click.option("--docker", is_flag=True, help="Instead: the published repository, by the compose file's Triton.")
@click.option("--compose", type=click.Path(path_type=Path), default=Path("docker-compose.yml"), show_default=True)
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
@click.option("--bisect", is_flag=True, help="Which nodes of a lowered graph leave fp32 first. Asks no server.")
@click.option("--precisions", is_flag=True, help="Each precision side by side, on this CPU. Asks no server.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the made-up inputs.")
@_common
def verify(**arguments: Any) -> None:
    """Compare the answers of a live server with ONNX Runtime's, per output, at batch 1, 2 and the maximum."""
    _call("verify", **arguments)


@main.command(epilog="Examples: repogen bench -m text_rec --users 16; repogen bench --rate 200 --until p99±5%")
@_manifest
@_models
@_url
@_jobs
@click.option("--users", type=click.IntRange(1), default=8, show_default=True, help="Requests under way at any time.")
@click.option(
    "--rate",
    "rates",
    type=click.FloatRange(0.01),
    multiple=True,
    help="Instead: requests a second; repeat for more runs.",
)
@click.option(
    "--arrivals",
    default="",
    help="Of a rate: poisson (default), constant, burst(ON, OFF), ramp(PART, SECONDS); trace:FILE.",
)
@click.option(
    "--duration",
    "--max-time",
    type=click.FloatRange(0.1),
    default=10.0,
    show_default=True,
    help="Seconds measured, a run.",
)
@click.option("--warm-up", type=click.FloatRange(0), default=1.0, show_default=True, help="Seconds that do not count.")
@click.option("--until", default="", help="End a run earlier, when its percentile is sure: p99±5%.")
@click.option("--batch", default="1", show_default=True, help="Samples a request, or a distribution: choice(1*7, 8*3).")
@click.option(
    "--shape", "shapes", multiple=True, help="x:3,224 or a distribution for an axis: 'W: lognormal(320, 80)'."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the arrivals and of made-up inputs.")
@click.option(
    "--deadline", type=click.FloatRange(0.01), default=30.0, show_default=True, help="Seconds an answer may take."
)
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="Locust workers that share the load."
)
@click.option(
    "--locust-master", "master", default="", help="Be Locust's master on HOST[:PORT]; wait for --workers elsewhere."
)
@click.option("--metrics", default="", help="HOST:PORT of Triton's metrics; by default beside its gRPC port.")
@click.option("--samples", type=click.Path(path_type=Path), help="Keep the raw samples in this folder.")
@click.option("--report", type=click.Path(path_type=Path), help="Write one self-contained HTML page.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write a line for each run.")
@_common
def bench(**arguments: Any) -> None:
    """Load a live server over gRPC with Locust: rate, percentiles, whether they hold, and what Triton did meanwhile.

    Latency counts from the instant at which a request was due, so a server that stalls cannot hide it.
    """
    _call("bench", **arguments)


@main.command(epilog="Example: repogen report samples/ --html report.html")
@click.argument("paths", metavar="[FILE or FOLDER]...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--html", "output", type=click.Path(path_type=Path), help="Write one self-contained HTML page.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write a line for each run.")
@_common
def report(**arguments: Any) -> None:
    """Report again from the raw samples that `bench --samples` or a Locust run kept, also of one that was killed."""
    _call("report", **arguments)


@main.command(
    epilog="Examples: repogen tune -m text_rec --html tuned.html; repogen tune --dry-run; repogen tune --apply"
)
@_manifest
@_models
@click.option("--all", "every", is_flag=True, help="Every model with a `tune:` in the manifest, in turn.")
@_url
@_jobs
@click.option("--budget", default="8 runs", show_default=True, help="Runs or time, calibrations included: 8 runs, 5m.")
@click.option("--dry-run", is_flag=True, help="Predict from the calibration of an earlier run; no server is needed.")
@click.option("--apply", is_flag=True, help="Write the choice into the manifest, its evidence as a comment.")
@click.option("--force", is_flag=True, help="Apply also what was measured on another backend, device or build.")
@click.option("--fresh", is_flag=True, help="Forget earlier trials.")
@click.option("--html", "report", type=click.Path(path_type=Path), help="Write one self-contained HTML page.")
@click.option("--csv", type=click.Path(path_type=Path), help="Write a line for each trial, as Model Analyzer does.")
@_common
def tune(**arguments: Any) -> None:
    """Find the batching settings that hold the manifest's SLO: predict them all, confirm a handful on a live server.

    Trials are overrides of the load call: no file is touched, and the config that was served is put back.
    """
    _call("tune", **arguments)


@main.group(epilog="Examples: repogen export compose; repogen export k8s -o k8s; repogen export monitoring")
def export() -> None:
    """Render what runs the repository in production. Each takes --json."""


def _export(what: str, default: str, text: str) -> None:
    @export.command(what, help=text, epilog=f"Example: repogen export {what} -f repogen.yaml -o {default}")
    @_manifest
    @click.option("-o", "--output", type=click.Path(path_type=Path), default=Path(default), show_default=True)
    @_jobs
    @_common
    def one(**arguments: Any) -> None:
        _call("export", what=what, **arguments)


_export("compose", ".", "docker-compose.yml: Triton hardened, and profiles to build, to load and to monitor.")
_export("k8s", "k8s", "A Kustomize base: servers, probes, scaling, conversion jobs, nightly scan, load test.")
_export("monitoring", "monitoring", "Prometheus rules and alerts, Alertmanager, Grafana dashboards.")


@main.command(epilog="Example: repogen schema > repogen.schema.json")
@_common
def schema(**arguments: Any) -> None:
    """Print the JSON schema of the manifest, from which editors complete."""
    _call("schema", **arguments)
