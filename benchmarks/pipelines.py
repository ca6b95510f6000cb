"""Both example pipelines on the embedded Triton: P99 as predicted by simulators in series, and as measured.

    python benchmarks/pipelines.py --cache DIR [--only text|ocr] [--quick] [--json FILE]

Calibrates with a lone client, many clients and a few rates, then measures at other rates: 30, 50, 65 and 80 % of what
many clients reached. It goes on where it was interrupted: what lies in the cache is not measured again. The text
pipeline gets 40 sentences of 1 to 40 words in turn; ocr gets strips of the example sign with one line or two, and
its detector sees them in their own size (`short_side`), so that a thousand requests take minutes and not an hour.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from repogen.load import payload
from repogen.load.intervals import interval, percentile
from repogen.load.metrics import latencies, result
from repogen.triton import Client
from repogen.tune.override import setting_of_step
from repogen.tune.pipeline import Pipeline, Stage, Traffic, stages_of
from repogen.tune.pipeline_live import Whole, seen, traffic
from repogen.tune.pipeline_service import Seen, calibrated
from repogen.tune.service import Latencies
from repogen.tune.setting import Setting

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples" / "pipelines"
SIGN = HERE.parent / "examples" / "inputs" / "sign.png"
NAMES = {"text": "embed", "ocr": "ocr"}
USERS = (1, 8)
FITTED = (0.2, 0.4, 0.58, 0.73)
SCORED = (0.3, 0.5, 0.65, 0.8)
"""Parts of what many clients reached; no run of the first kind is scored, none of the second is fitted."""
REQUESTS = {"fitted": 800, "scored": 2000}
SECONDS = {"fitted": (8.0, 45.0), "scored": (8.0, 110.0)}
SHORT_SIDE = 64
LONGEST = 40  # words
SEEDS = 5


def pool(name: str) -> list[dict[str, Any]]:
    if name == "text":
        sys.path.insert(0, str(EXAMPLES))
        from sentences import sentences

        texts = [text for text in sentences() if len(text.split()) <= LONGEST][:40]
        return [{"text": np.array([[text.encode()]], dtype=np.object_)} for text in texts]
    return [{"image": np.array([strip], dtype=np.object_)} for strip in strips()]


def strips() -> list[bytes]:
    """Cut the sign, at half its size, into strips with one line and with two."""
    from PIL import Image

    found = []
    with Image.open(SIGN) as sign:
        half = sign.convert("RGB").resize((320, 192))
    for lines, high in ((1, 64), (2, 96)):
        for line in range(5 - lines):
            top = max(min(14 + line * 42 - (high - lines * 42) // 2, 192 - high), 0)
            for shift in (0, 2):
                buffer = io.BytesIO()
                half.crop((shift, top, shift + 316, top + high)).resize((320, high)).save(buffer, "PNG")
                found.append(buffer.getvalue())
    return found


def manifest(folder: Path) -> Path:
    """Write the example's manifest with its paths made absolute, and with the detector's picture small."""
    told = yaml.safe_load((EXAMPLES / "repogen.yaml").read_text())
    told["repository"] = str(folder / "repository")
    for entry in told["models"].values():
        for key in {"source", "samples"} & entry.keys():
            entry[key] = _absolute(entry[key])
        if "files" in entry:
            entry["files"] = [_absolute(file) for file in entry["files"]]
    told["models"]["ocr_decode"]["parameters"] = {"short_side": str(SHORT_SIDE)}
    path = folder / "repogen.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


def _absolute(file: Any) -> Any:
    if isinstance(file, str):
        return str((EXAMPLES / file).resolve())
    return {**file, "source": str((EXAMPLES / file["source"]).resolve())}


# --- measuring ----------------------------------------------------------------------------------------------------


def measure(name: str, url: str, cache: Path, *, quick: bool) -> None:
    """Make every run of one pipeline that is not in the cache yet."""
    path = cache / f"{name}.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def keep(key: str, value: Any) -> None:
        known[key] = value
        path.with_suffix(".part").write_text(json.dumps(known))
        path.with_suffix(".part").replace(path)

    with tempfile.TemporaryDirectory() as scratch, Client(url) as client:
        requests = pool(name)
        payloads = Path(scratch) / "requests.npz"
        payload.save(payloads, requests)
        config = client.config(NAMES[name])
        stages = stages_of(config)
        originals = tuple(client.config(stage.model) for stage in stages)
        settings = tuple(setting_of_step(one) for one in originals)
        whole = Whole(client, NAMES[name], stages, originals, payloads, Path(scratch) / "samples")
        if "traffic" not in known:
            batched = [bool(one.max_batch_size) for one in originals]
            keep("traffic", [asdict(one) for one in traffic(client, NAMES[name], stages, batched, requests)])
            keep("stages", [asdict(stage) for stage in stages])
            keep("settings", [one.words() for one in settings])
        for users in USERS:
            if f"users {users}" not in known:
                keep(f"users {users}", row_of(whole, settings, 6.0 if quick else 12.0, users=users))
        most = known[f"users {USERS[-1]}"]["rate"]
        for kind, part in points(quick=quick):
            key, rate = f"{kind} {part:g}", part * most
            least, most_seconds = SECONDS[kind]
            seconds = min(max(REQUESTS[kind] / rate, least), 20.0 if quick else most_seconds)
            tries = 0
            while not known.get(key, {}).get("valid") and tries < 2:
                keep(key, row_of(whole, settings, seconds, arrivals="poisson", rate=rate))
                tries += 1


def points(*, quick: bool) -> list[tuple[str, float]]:
    """Return the runs in their order: fitted and scored ones in turn, since a shared machine has faster minutes."""
    pairs = list(zip(FITTED, SCORED, strict=True))[:: 3 if quick else 1]
    return [one for low, high in pairs for one in (("fitted", low), ("scored", high))]


def row_of(whole: Whole, settings: tuple[Setting, ...], seconds: float, **load: Any) -> dict[str, Any]:
    samples = whole.run(settings, seconds, **load)
    found = result([samples])
    taken = latencies([samples])
    print(f"{time.strftime('%H:%M:%S')} {found.load}: {found.summary.rate:.2f}/s, P50 {found.summary.p50}, "
          f"max {found.summary.max}, {found.summary.requests} requests, {found.verdict}", flush=True)  # fmt: skip
    return {
        "load": found.load,
        "rate": found.summary.rate,
        "valid": found.verdict.valid,
        "verdict": str(found.verdict),
        "seen": asdict(seen(samples, whole.stages, settings)),
        "latencies_us": (taken // 1000).tolist(),
        "low": interval(taken, "99")[0] * 1e-6,
        "high": interval(taken, "99")[1] * 1e-6,
        "steps": {model: [one.queue, one.compute, one.mean_batch] for model, one in found.served.members.items()},
        "load_average": os.getloadavg()[0],
    }


# --- scoring ------------------------------------------------------------------------------------------------------


def setting_from_json(told: dict[str, Any]) -> Setting:
    from repogen.tune.journal import setting_from

    return setting_from(told)


def seen_from(told: dict[str, Any]) -> Seen:
    return Seen(
        settings=tuple(setting_from_json(one) for one in told["settings"]),
        batches=tuple(tuple((int(s), int(n), float(t)) for s, n, t in rows) for rows in told["batches"]),
        latencies=Latencies(**told["latencies"]),
        clients=told["clients"],
        due=tuple(told["due"]),
        first=told["first"],
    )


def fitted(known: dict[str, Any]) -> Pipeline:
    stages = tuple(Stage(**{**one, "after": tuple(one["after"])}) for one in known["stages"])
    parts = tuple(Traffic(**{key: tuple(value) for key, value in one.items()}) for one in known["traffic"])
    runs = [seen_from(row["seen"]) for key, row in known.items() if key.startswith(("users", "fitted"))]
    return calibrated(stages, parts, runs)


def score(name: str, cache: Path) -> list[dict[str, Any]]:
    known = json.loads((cache / f"{name}.json").read_text())
    pipeline = fitted(known)
    rows = []
    for part in SCORED:
        row = known.get(f"scored {part:g}")
        if row is None:
            continue
        run = seen_from(row["seen"])
        predicted = np.mean([
            np.percentile(pipeline.latencies(run.settings, np.array(run.due), run.rate, seed=seed, first=run.first), 99)
            for seed in range(SEEDS)
        ]) * 1e3  # fmt: skip
        measured = percentile(np.sort(np.array(row["latencies_us"])), "99") * 1e-3
        rows.append({
            "pipeline": name, "part": part, "rate": run.rate, "requests": len(run.due), "measured": measured,
            "low": row["low"], "high": row["high"], "predicted": float(predicted),
            "error": float(predicted / measured - 1), "valid": row["valid"], "verdict": row["verdict"],
        })  # fmt: skip
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print("| pipeline | load | rate/s | requests | P99 measured [95 %] ms | predicted ms | error |")
    print("|--|--|--|--|--|--|--|")
    for row in rows:
        void = "" if row["valid"] else f" ({row['verdict']})"
        print(f"| {row['pipeline']} | {row['part']:.0%} | {row['rate']:.2f} | {row['requests']} "
              f"| {row['measured']:.1f} [{row['low']:.1f}, {row['high']:.1f}]{void} | {row['predicted']:.1f} "
              f"| {row['error']:+.1%} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path(".bench"))
    parser.add_argument("--only", choices=sorted(NAMES))
    parser.add_argument("--quick", action="store_true", help="two rates of each kind, short runs")
    parser.add_argument("--score", action="store_true", help="from what lies in the cache, nothing is measured")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    names = [asked.only] if asked.only else list(NAMES)
    asked.cache.mkdir(parents=True, exist_ok=True)
    if asked.url:
        measure(names[0], asked.url, asked.cache, quick=asked.quick)
        return
    for name in [] if asked.score else names:
        with tempfile.TemporaryDirectory() as scratch:
            again = [
                sys.executable,
                str(Path(__file__).resolve()),
                "--only",
                name,
                "--cache",
                str(asked.cache.resolve()),
            ]
            inner = " ".join([*again, "--url", '"$REPOGEN_URL"', *(["--quick"] if asked.quick else [])])
            command = [sys.executable, "-m", "repogen", "serve", "-f", str(manifest(Path(scratch))), "-m", NAMES[name]]
            subprocess.run([*command, "--", "sh", "-c", inner], check=True)
    rows = [row for name in names if (asked.cache / f"{name}.json").exists() for row in score(name, asked.cache)]
    show(rows)
    worst = max((abs(row["error"]) for row in rows if row["valid"]), default=float("nan"))
    print(json.dumps({"points": len(rows), "p99_worst": worst}))
    if asked.json:
        raw = {name: json.loads((asked.cache / f"{name}.json").read_text()) for name in names}
        asked.json.write_text(json.dumps({"rows": rows, "p99_worst": worst, "raw": raw}))


if __name__ == "__main__":
    main()
