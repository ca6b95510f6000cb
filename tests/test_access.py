import pytest

from repogen.access import Access, from_environment
from repogen.errors import RepogenError
from repogen.triton import Client
from tests.fake_triton import FakeTriton


def test_the_environment_says_it_all():
    found = from_environment({
        "REPOGEN_TLS_CA": "ca.pem",
        "REPOGEN_HEADERS": "triton-grpc-protocol-Admin: s3cret\n\n other : b:c \n",
    })  # fmt: skip
    assert found == Access("ca.pem", "", "", (("triton-grpc-protocol-admin", "s3cret"), ("other", "b:c")))
    assert "s3cret" not in repr(found)
    assert from_environment({}) == Access()


def test_what_is_no_header_is_refused_without_showing_it():
    with pytest.raises(RepogenError, match="line 2") as refused:
        from_environment({"REPOGEN_HEADERS": "a: b\ns3cret"})
    assert "s3cret" not in str(refused.value)


def test_a_certificate_that_is_not_there(monkeypatch):
    monkeypatch.setenv("REPOGEN_TLS_CA", "none.pem")
    with pytest.raises(RepogenError, match="REPOGEN_TLS_CA: none.pem cannot be read"):
        Client("grpcs://127.0.0.1:1")


def test_headers_go_with_every_call(monkeypatch):
    monkeypatch.setenv("REPOGEN_HEADERS", "triton-grpc-protocol-admin: s3cret")
    seen = []
    with FakeTriton() as fake:
        fake.metadata = seen.append
        with Client(fake.url) as client:
            client.server_id()
    assert ("triton-grpc-protocol-admin", "s3cret") in [tuple(pair) for row in seen for pair in row]
