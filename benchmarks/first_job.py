"""Start-up and sync times on the five example models: `python benchmarks/first_job.py [--json FILE]`.

Each row is the median of its repetitions as whole processes; `help_over_bare_ms` is what `--help` costs beyond
a bare interpreter. The raw seconds go into the JSON beside the figures.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def seconds(*arguments: str, cache: Path) -> float:
    environment = {**os.environ, "REPOGEN_CACHE": str(cache)}
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, env=environment)
    return time.perf_counter() - started


def repeat(count: int, measure: Callable[[], float]) -> list[float]:
    return [measure() for _ in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models").symlink_to(ROOT / "examples" / "models")
        manifest = folder / "repogen.yaml"
        text = (ROOT / "examples" / "repogen.yaml").read_text()
        manifest.write_text(text.replace("../model_repository", "model_repository"))
        sync = ("-m", "repogen", "sync", "-f", str(manifest))

        def cold() -> float:
            shutil.rmtree(folder / "cache", ignore_errors=True)
            shutil.rmtree(folder / "model_repository", ignore_errors=True)
            return seconds(*sync, cache=folder / "cache")

        samples = {
            "bare_s": repeat(options.repeat, lambda: seconds("-c", "pass", cache=folder)),
            "help_s": repeat(options.repeat, lambda: seconds("-m", "repogen", "--help", cache=folder)),
            "sync_cold_s": repeat(max(1, options.repeat // 2), cold),
            "sync_unchanged_s": repeat(options.repeat, lambda: seconds(*sync, cache=folder / "cache")),
        }
    figures = {key: statistics.median(values) for key, values in samples.items()}
    over = {"help_over_bare_ms": (figures["help_s"] - figures["bare_s"]) * 1000}
    for key, value in (figures | over).items():
        print(f"{key:<20} {value:8.3f}")
    if options.json:
        options.json.write_text(json.dumps(figures | over | {"samples": samples}, indent=2))


if __name__ == "__main__":
    main()
