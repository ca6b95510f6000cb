"""Frames and blocks of headers, by their own rules (RFC 9113, RFC 7541)."""

import random

import pytest

from repogen.load import http2
from tests.load.peer import failed

RANDOM = random.Random(6)


def test_the_integers_of_rfc_7541():
    """Its appendix C.1: 10 and 1337 in five bits, 42 in eight."""
    assert http2._integer(10, 5, 0) == b"\x0a"
    assert http2._integer(1337, 5, 0) == b"\x1f\x9a\x0a"
    assert http2._integer(42, 8, 0) == b"\x2a"


def test_integers_come_back():
    values = [*range(300), *(RANDOM.randrange(1 << 31) for _ in range(2000))]
    for value in values:
        for bits in (4, 5, 6, 7):
            coded = b"x" + http2._integer(value, bits, 0) + b"y"
            assert http2._read_integer(coded, 1, bits) == (value, len(coded) - 1)


def test_the_headers_of_a_request_are_those_that_were_given():
    metadata = [("key", "v" * length) for length in (0, 1, 126, 127, 128, 1000)]
    head = http2.head("/a/B", "host:1", 2.5, [(f"k{i}", value) for i, (_, value) in enumerate(metadata)])
    for block in (head.first, head.plain):
        told = http2.fields(block)
        assert told[b":path"] == b"/a/B"
        assert told[b"grpc-timeout"] == b"2500m"
        assert told[b"k5"] == b"v" * 1000
        assert len(told) == 12
    assert head.again == b"\x83\x86" + bytes(0x80 | entry for entry in range(61 + 12, 61, -1))
    assert head.size == sum(len(name) + len(value) + 32 for name, value in http2.fields(head.plain).items())


@pytest.mark.parametrize(("seconds", "text"), [(0.0001, b"1m"), (30, b"30000m"), (1e9, b"99999999m")])
def test_a_deadline_has_eight_digits_at_most(seconds, text):
    assert http2.fields(http2.head("/", "h:1", seconds).plain)[b"grpc-timeout"] == text


def test_blocks_of_random_literals_come_back():
    kinds = (b"\x40", b"\x00", b"\x10")
    for _ in range(500):
        pairs = {RANDOM.randbytes(RANDOM.randrange(1, 200)): RANDOM.randbytes(RANDOM.randrange(300)) for _ in range(5)}
        block = http2.NO_TABLE + b"".join(
            RANDOM.choice(kinds) + http2._string(name) + http2._string(value) for name, value in pairs.items()
        )
        assert http2.fields(block) == pairs


def test_a_block_that_is_cut_off_or_garbage_is_unreadable_or_read_but_never_breaks():
    block = http2.head("/a", "h:1", 1.0).plain
    for cut in range(3, len(block)):
        try:
            assert http2.fields(block[:cut]).items() <= http2.fields(block).items()
        except http2.Unreadable:
            continue
    for _ in range(3000):
        try:
            http2.fields(RANDOM.randbytes(RANDOM.randrange(40)))
        except http2.Unreadable:
            continue


@pytest.mark.parametrize(
    "block",
    [b"\x40\x88xxxxxxxx\x010", b"\x40\x0bgrpc-status\x81\x07", b"\xbe", b"\x7f\x00\x010"],
    ids=["name in Huffman", "status in Huffman", "entry of a table that is empty", "name out of it"],
)
def test_what_needs_a_whole_decoder(block):
    with pytest.raises(http2.Unreadable):
        http2.fields(block)


def test_huffman_in_what_does_not_matter():
    assert http2.fields(b"\x40\x06server\x82\xff\xff\x40\x0bgrpc-status\x010")[b"grpc-status"] == b"0"


@pytest.mark.parametrize(
    ("told", "http", "code", "words"),
    [
        ({b"grpc-status": b"0"}, b"200", 0, ""),
        ({b"grpc-status": b"8", b"grpc-message": b"out of %C3%BC 100%25"}, b"200", 8, "out of ü 100%"),
        ({b"grpc-status": b"3", b"grpc-message": b"%FF%zz"}, b"200", 3, "\ufffd%zz"),
        ({}, b"503", 14, "HTTP status 503, and none of gRPC"),
        ({b":status": b"404"}, b"200", 12, "HTTP status 404, and none of gRPC"),
        ({}, b"200", 2, "an answer without gRPC's status"),
        ({b"grpc-status": b"x"}, b"200", 2, "an answer without gRPC's status"),
    ],
)
def test_outcomes(told, http, code, words):
    assert http2.outcome(told, http) == (code, words)


def test_statuses_of_the_static_table():
    assert http2.fields(b"\x88")[b":status"] == b"200"
    assert http2.fields(b"\x08\x03503")[b":status"] == b"503"
    assert http2.outcome(http2.fields(failed(5, "no such model"))) == (5, "no such model")


def test_padding_and_priority_are_not_content():
    assert http2.content(b"\x03abc\0\0\0", http2.PADDED) == b"abc"
    assert http2.content(b"\x01\0\0\0\0\x10abc\0", http2.PADDED | http2.PRIORITY, headers=True) == b"abc"


def test_settings_come_back():
    values = {1: 0, 4: 2**31 - 1, 0xFE03: 1}
    assert http2.read_settings(http2.settings(values)) == list(values.items())


@pytest.mark.parametrize(
    ("metadata", "fits"),
    [
        ((("key", "open sesame"),), True),
        ((("x-bin", "a"),), False),
        ((("k", "ü"),), False),
        ((("k", "v" * 9000),), False),
    ],
)
def test_headers_that_go_as_they_are(metadata, fits):
    assert http2.suits(metadata) is fits
