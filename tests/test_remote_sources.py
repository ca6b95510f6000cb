"""Sources in a bucket, against a real S3 server process."""

import hashlib

import numpy as np
import pytest

from repogen import remote_sources
from repogen.errors import ManifestError, ModelError
from repogen.remote_sources import collect, fetched, sources_folder
from tests.s3server import BUCKET, needs_s3
from tests.serverkit import onnx_file

pytestmark = needs_s3
URL = f"s3://{BUCKET}/models/add.onnx"


@pytest.fixture
def put(s3, project, monkeypatch, tmp_path):
    """Write a file of the project into the bucket."""
    monkeypatch.setenv("REPOGEN_CACHE", str(tmp_path / "cache"))

    def write(name="add.onnx", content=None):
        content = (project / name).read_bytes() if content is None else content
        s3.client().pipe_file(f"{BUCKET}/models/{name}", content)
        return content

    return write


def downloads(s3):
    return [row for row in s3.asked("GET") if "/models/" in row and "list-type" not in row]


def test_a_model_is_fetched_once_for_each_content(put, s3):
    first = put()
    copy = fetched(URL)
    assert (copy.name, copy.read_bytes()) == ("add.onnx", first)
    s3.forget()
    assert fetched(URL) == copy
    assert downloads(s3) == []
    other = put(content=first + b"\x00" * 0 + first[-1:] * 0 + b"")
    assert (fetched(URL), other) == (copy, first)  # written again, the same
    onnx_file(
        copy.parents[3] / "new.onnx",
        [("Mul", ["x", "x"], ["y"], {})],
        [("x", "FLOAT", ["N", "W"])],
        [("y", "FLOAT", ["N", "W"])],
    )
    second = put(content=(copy.parents[3] / "new.onnx").read_bytes())
    assert fetched(URL).read_bytes() == second
    assert copy.read_bytes() == first, "a run that still reads the older one is not disturbed"


def test_weights_are_fetched_beside_their_model_and_watched(put, s3, tmp_path):
    import onnx

    onnx_file(
        tmp_path / "big.onnx",
        [("Add", ["x", "w"], ["y"], {})],
        [("x", "FLOAT", ["N", 4])],
        [("y", "FLOAT", ["N", 4])],
        {"w": np.arange(4, dtype=np.float32)},
    )
    onnx.save(
        onnx.load(tmp_path / "big.onnx"),
        tmp_path / "add.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    put()
    weights = put("w.bin")
    copy = fetched(URL)
    assert (copy.parent / "w.bin").read_bytes() == weights
    put("w.bin", weights[::-1])
    assert (fetched(URL).parent / "w.bin").read_bytes() == weights[::-1]


def test_the_digest_that_is_given_is_enforced(put):
    digest = hashlib.sha256(put()).hexdigest()
    assert fetched(URL, digest)
    with pytest.raises(ManifestError, match="repogen.yaml:7.*sha256"):
        fetched(URL, "0" * 64, "repogen.yaml:7")


def test_what_is_not_there_or_no_model_is_told(put):
    with pytest.raises(ModelError, match=f"there is no {URL}"):
        fetched(URL)
    put(content=b"<html>sign in</html>")
    with pytest.raises(ModelError, match="HTML"):
        fetched(URL)
    assert not [path for path in sources_folder().rglob("*") if path.is_file()], "nothing half-done is left"


def test_a_copy_that_was_damaged_is_fetched_again(put):
    content = put()
    copy = fetched(URL)
    copy.write_bytes(content[:-1])
    assert fetched(URL).read_bytes() == content


def test_a_whole_sync_from_a_bucket(put, project, invoke):
    put()
    manifest = project / "repogen.yaml"
    manifest.write_text(manifest.read_text().replace("source: add.onnx", f"source: {URL}"))
    invoke("sync", "-f", manifest)
    assert (project / "served/models/add/1/model.onnx").read_bytes() == (project / "add.onnx").read_bytes()
    assert "nothing to do" in invoke("sync", "-f", manifest).stdout


def test_copies_beyond_the_limit_go_oldest_first(put, monkeypatch):
    put()
    copy = fetched(URL)
    assert collect(10**9) == []
    assert [name for name, _ in collect(0, dry=True)] == [str(copy.parent)]
    assert copy.exists()
    ((name, size),) = collect(0)
    assert name == str(copy.parent)
    assert size > 0
    assert not copy.exists()


def test_a_fetch_that_was_cut_short_goes_after_a_day(put, monkeypatch):
    put()
    partial = fetched(URL).parent.parent / "part-of-a-dead-run"
    partial.mkdir()
    assert str(partial) not in dict(collect(10**9))
    monkeypatch.setattr(remote_sources, "_STALE", -1)
    assert str(partial) in dict(collect(10**9))
    assert not partial.exists()
