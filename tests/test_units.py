import pytest

from repogen.units import duration_text, microseconds, size_bytes, size_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0ms", 0), ("500us", 500), ("2ms", 2000), ("1.5ms", 1500), ("1s", 1_000_000), ("2m", 120_000_000)],
)
def test_microseconds(text, expected):
    assert microseconds(text) == expected


@pytest.mark.parametrize("wrong", ["2", 2, "2 parsecs", "-1ms", "", None, "ms", "1e3us", "0.5us"])
def test_what_is_no_duration_is_refused_with_its_text(wrong):
    with pytest.raises(ValueError, match="duration|finer") as error:
        microseconds(wrong)
    assert repr(wrong) in str(error.value)


@pytest.mark.parametrize("value", [0, 1, 999, 1000, 2500, 3_000_000])
def test_a_duration_reads_back(value):
    assert microseconds(duration_text(value)) == value


@pytest.mark.parametrize(("text", "expected"), [("512MiB", 2**29), ("4GiB", 2**32), ("1.5KB", 1500), ("7B", 7)])
def test_sizes(text, expected):
    assert size_bytes(text) == expected


@pytest.mark.parametrize("wrong", ["4", 4, "4 gigs", "-1GiB"])
def test_what_is_no_size_is_refused(wrong):
    with pytest.raises(ValueError, match="is not a size"):
        size_bytes(wrong)


def test_sizes_for_people():
    assert [size_text(n) for n in (5, 4700, 4_700_000, 4_700_000_000)] == ["5 B", "4.7 KB", "4.7 MB", "4.7 GB"]
