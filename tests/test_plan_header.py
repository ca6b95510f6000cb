import pytest

from repogen.plan_header import PlanHeader, header_bytes, read_header


def written(tmp_path, data):
    path = tmp_path / "model.plan"
    path.write_bytes(data)
    return read_header(path)


def test_the_documented_layout(tmp_path):
    """Magic, format 0, eight bytes of padding, the size, then major, minor, patch and build."""
    data = b"ftrt" + bytes(4) + b"\xff" * 8 + (32).to_bytes(8, "little") + bytes([10, 9, 0, 34]) + b"rest"
    assert written(tmp_path, data) == PlanHeader("", rtx=False, version=(10, 9, 0, 34), declared=32, size=32)


def test_the_plan_of_tensorrt_rtx_that_was_seen(tmp_path):
    header = written(tmp_path, b"vtrt" + bytes(12) + (421156).to_bytes(8, "little") + bytes([1, 7, 1, 0x74]))
    assert (header.rtx, header.version, header.declared) == (True, (1, 7, 1, 116), 421156)


def test_what_is_written_is_read(tmp_path):
    header = written(tmp_path, header_bytes((8, 6, 1, 6), size=28))
    assert header == PlanHeader("", rtx=False, version=(8, 6, 1, 6), declared=28, size=28)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"\x08\x08\x12\x07pytorch" + bytes(40), "does not begin"),
        (b"ptrt" + bytes(40), "does not begin"),
        (b"ftrt" + bytes(10), "cut short"),
        (b"ftrt" + (1).to_bytes(4, "little") + bytes(40), "format is 1"),
    ],
)
def test_what_is_no_plan(data, problem, tmp_path):
    assert problem in written(tmp_path, data).problem
