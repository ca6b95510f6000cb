import json
import socket
import subprocess

import pytest

from repogen import live, pbtxt, server
from repogen.errors import ServerError
from repogen.live import addresses, unlike
from repogen.triton import Client
from tests.conftest import tree
from tests.serverkit import needs_server

MODEL = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        {start}

    def execute(self, requests):
        {run}
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([{number}], dtype=np.float32))])
            for request in requests
        ]
"""


def put(folder, *models, number=1, start="pass", run="pass", delay="1ms"):
    """Write a manifest for Python models that answer `number`."""
    text = 'triton: "26.08"\nrepository: served/models\ndefaults:\n  instances: [{kind: cpu}]\nmodels:\n'
    for name in models:
        (folder / f"{name}.py").write_text(MODEL.format(number=number, start=start, run=run))
        text += (
            f'  {name}:\n    source: {name}.py\n    max_batch_size: 0\n    parameters: {{delay: "{delay}"}}\n'
            "    inputs: {x: {dtype: FP32, dims: [-1]}}\n    outputs: {y: {dtype: FP32, dims: [1]}}\n"
        )
    (folder / "repogen.yaml").write_text(text)
    return folder / "repogen.yaml"


def answer(client, name):
    import numpy as np

    return client.infer(name, {"x": np.zeros(3, dtype=np.float32)})["y"].tolist()


def config(**changes):
    made = pbtxt.parse(
        'name: "m" backend: "python" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: -1 } '
        "instance_group { kind: KIND_CPU count: 1 } "
        'dynamic_batching {} parameters { key: "repogen_fingerprint" value { string_value: "f" } }'
    )
    for key, value in changes.items():
        getattr(made, key).MergeFrom(value) if hasattr(value, "MergeFrom") else setattr(made, key, value)
    return made


def as_live(meant):
    """What Triton 2.51 answers for a config that it loaded (seen on the real server)."""
    found = type(meant)()
    found.CopyFrom(meant)
    found.version_policy.latest.num_versions = 1
    found.instance_group[0].name = "m_0"
    found.default_model_filename = "model.py"
    found.optimization.input_pinned_memory.enable = True
    found.optimization.output_pinned_memory.enable = True
    if not found.dynamic_batching.preferred_batch_size:
        found.dynamic_batching.preferred_batch_size.append(8)
    return found


def test_what_triton_fills_in_is_no_difference():
    assert unlike(config(), as_live(config())) == []


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("dynamic_batching", lambda found: setattr(found.dynamic_batching, "max_queue_delay_microseconds", 7000)),
        ("dynamic_batching", lambda found: found.dynamic_batching.preferred_batch_size.append(2)),
        ("max_batch_size", lambda found: setattr(found, "max_batch_size", 4)),
        ("instance_group", lambda found: setattr(found.instance_group[0], "count", 2)),
        ("input", lambda found: found.input[0].dims.append(3)),
        ("parameters", lambda found: setattr(found.parameters["x"], "string_value", "y")),
        ("fingerprint", lambda found: setattr(found.parameters["repogen_fingerprint"], "string_value", "g")),
        ("model_warmup", lambda found: found.model_warmup.add(name="w")),
        ("dynamic_batching", lambda found: found.sequence_batching.SetInParent()),  # it takes the other's place
    ],
)  # fmt: skip
def test_what_somebody_overrode_is_one(field, change):
    found = as_live(config())
    change(found)
    assert field in unlike(config(), found)


def resolving(monkeypatch, *ips):
    rows = [(socket.AF_INET6 if ":" in ip else socket.AF_INET, 1, 6, "", (ip, 8001)) for ip in ips]
    monkeypatch.setattr(live.socket, "getaddrinfo", lambda *_, **__: rows)


def test_a_name_with_several_addresses_means_all_of_them(monkeypatch):
    resolving(monkeypatch, "10.0.0.1", "10.0.0.2", "10.0.0.1", "fd00::1")
    assert addresses("triton:8001") == [
        ("10.0.0.1:8001", "triton"),
        ("10.0.0.2:8001", "triton"),
        ("[fd00::1]:8001", "triton"),
    ]
    assert addresses("grpcs://triton:8001")[0] == ("grpcs://10.0.0.1:8001", "triton")
    resolving(monkeypatch, "10.0.0.1")
    assert addresses("triton:8001") == [("triton:8001", "")]
    resolving(monkeypatch, "127.0.0.1", "::1")
    assert addresses("localhost:8001") == [("localhost:8001", "")]


def test_an_address_without_a_port_and_a_name_without_an_address():
    with pytest.raises(ServerError, match="has no port"):
        addresses("triton")
    with pytest.raises(ServerError, match="has no address"):
        addresses("no-such-host.invalid:1")


def test_an_absent_server_is_told_before_anything_is_written(tmp_path, invoke):
    result = invoke("sync", "-f", put(tmp_path, "a"), "--url", "127.0.0.1:1", code=4)
    assert "no Triton answers at 127.0.0.1:1" in result.stderr
    assert not (tmp_path / "served").exists()
    invoke("sync", "-f", tmp_path / "repogen.yaml", "--url", "127.0.0.1:1", "--no-load")
    assert "not known: --url" in invoke("sync", "-f", put(tmp_path, "a", number=2)).stderr


@pytest.mark.server
@needs_server[1]
class TestExplicit:
    @pytest.fixture
    def served(self, tmp_path, invoke):
        """Two models, published and served; give the folder, a client, and the options that name the server."""
        invoke("sync", "-f", put(tmp_path, "a", "b"))
        with server.start(tmp_path / "served/models") as triton, Client(triton.grpc) as client:
            yield tmp_path, client, ["-f", tmp_path / "repogen.yaml", "--url", triton.grpc]

    def test_a_change_is_loaded_and_proved_and_rolled_back(self, served, invoke):
        folder, client, options = served
        put(folder, "a", "b", number=2)
        invoke("sync", *options)
        assert (answer(client, "a"), answer(client, "b")) == ([2.0], [2.0])
        assert "every server serves what is published" in invoke("sync", *options).stdout
        invoke("rollback", *options)
        assert (answer(client, "a"), answer(client, "b")) == ([1.0], [1.0])

    @pytest.mark.parametrize(
        ("broken", "told"),
        [
            ({"start": "raise RuntimeError('no weights')"}, "no weights"),
            ({"run": "raise ValueError('no such axis')"}, "no such axis"),
        ],
        ids=["at load", "at its first request"],
    )
    def test_what_the_server_refuses_gives_its_place_back(self, served, invoke, broken, told):
        folder, client, options = served
        before = tree(folder / "served/models/a")
        put(folder, "a", number=2, **broken)
        result = invoke("sync", *options, code=4)
        assert told in result.stderr
        assert "the previous generation is back" in result.stderr
        assert tree(folder / "served/models/a") == before
        assert answer(client, "a") == [1.0]
        assert json.loads(invoke("history", "-f", options[1], "--json").stdout)["generations"][-1]["number"] == 1

    def test_a_new_model_that_does_not_load_is_taken_out(self, served, invoke):
        folder, client, options = served
        put(folder, "a", "b")
        (folder / "c.py").write_text("nonsense(")
        manifest = folder / "repogen.yaml"
        entry = manifest.read_text().split("models:\n")[1].split("  b:")[0]
        manifest.write_text(manifest.read_text() + entry.replace("  a:", "  c:").replace("a.py", "c.py"))
        assert "it was taken out again" in invoke("sync", *options, code=4).stderr
        assert sorted(path.name for path in (folder / "served/models").iterdir()) == ["a", "b"]
        assert answer(client, "a") == [1.0]

    def test_an_override_is_found_and_undone(self, served, invoke):
        from google.protobuf import json_format

        _, client, options = served
        overridden = json_format.MessageToDict(client.config("a"), preserving_proto_field_name=True)
        overridden["parameters"]["delay"] = {"string_value": "9ms"}
        client.load("a", json.dumps(overridden))
        client.load("a")  # a plain load does not bring the files' config back
        assert client.config("a").parameters["delay"].string_value == "9ms"
        result = invoke("sync", *options)
        assert "a was not served as published: loaded again" in result.stdout
        assert client.config("a").parameters["delay"].string_value == "1ms"
        assert "every server serves" in invoke("sync", *options).stdout

    def test_a_pruned_model_is_unloaded(self, served, invoke):
        folder, client, options = served
        put(folder, "a")
        invoke("sync", *options, "--prune", "--yes")
        assert client.ready("a")
        assert not client.ready("b")
        assert not (folder / "served/models/b").exists()

    def test_several_servers_take_it_one_after_the_other(self, served, invoke):
        folder, client, options = served
        with server.start(folder / "served/models") as second, Client(second.grpc) as other:
            put(folder, "a", "b", number=5)
            invoke("sync", *options, "--url", second.grpc)
            assert (answer(client, "a"), answer(other, "a")) == ([5.0], [5.0])


@pytest.mark.server
@needs_server[1]
def test_a_server_that_polls_is_waited_for(tmp_path, invoke):
    manifest = put(tmp_path, "a")
    invoke("sync", "-f", manifest)
    with server.start(tmp_path / "served/models", control="poll") as triton, Client(triton.grpc) as client:
        put(tmp_path, "a", number=2)
        invoke("sync", "-f", manifest, "--url", triton.grpc)
        assert answer(client, "a") == [2.0]
        put(tmp_path, "a", number=3, start="raise RuntimeError('no')")
        result = invoke("sync", "-f", manifest, "--url", triton.grpc, "--load-timeout", "4", code=4)
        assert "polls, and does not serve a after 4 s" in result.stderr
        assert answer(client, "a") == [2.0]


@pytest.mark.server
@needs_server[1]
def test_tls_with_client_certificates_and_a_restricted_protocol(tmp_path, invoke, monkeypatch):
    authority(tmp_path)
    manifest = put(tmp_path, "a")
    invoke("sync", "-f", manifest)
    secured = [
        "--grpc-use-ssl=1", "--grpc-use-ssl-mutual=1", f"--grpc-server-cert={tmp_path}/server.crt",
        f"--grpc-server-key={tmp_path}/server.key", f"--grpc-root-cert={tmp_path}/ca.crt",
        "--grpc-restricted-protocol=model-repository:admin=s3cret",
    ]  # fmt: skip
    with server.start(tmp_path / "served/models", extra_args=secured) as triton:
        options = ["-f", manifest, "--url", f"grpcs://{triton.grpc}"]
        put(tmp_path, "a", number=2)
        assert "no Triton answers" in invoke("sync", *options, code=4).stderr
        for variable, name in (("CA", "ca.crt"), ("CERT", "client.crt"), ("KEY", "client.key")):
            monkeypatch.setenv(f"REPOGEN_TLS_{variable}", str(tmp_path / name))
        refused = invoke("sync", *options, code=4).stderr
        assert "s3cret" not in refused
        assert "the previous generation is back" in refused
        monkeypatch.setenv("REPOGEN_HEADERS", "triton-grpc-protocol-admin: s3cret")
        invoke("sync", *options)
        with Client(f"grpcs://{triton.grpc}") as client:
            assert answer(client, "a") == [2.0]


def authority(folder):
    """Make a certificate authority, and certificates of it for a server at 127.0.0.1 and for a client."""

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl(
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        "ca.key",
        "-out",
        "ca.crt",
        "-subj",
        "/CN=ca",
        "-days",
        "2",
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("server", "client"):
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.crt", "-days", "2", "-extfile", "names",
        )  # fmt: skip
