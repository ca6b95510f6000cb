"""`repogen check --profile production` on compose and Kubernetes files as people write them."""

import json

import pytest

from repogen.check.deployment import read_services
from repogen.check.engine import check_repository
from repogen.check.production_rules import _COMPOSE, _POD
from repogen.check.target import target_of


@pytest.fixture
def found(tmp_path):
    """Return the codes found in the text of a file, with their lines."""

    def run(text, name="docker-compose.yml"):
        (tmp_path / "models").mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        findings = check_repository(tmp_path / "models", target_of("26.08"), deployments=[tmp_path / name])
        return {it.code: int(it.where.rpartition(":")[2]) for it in findings}

    return run


def changed(text, *pairs):
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


@pytest.mark.parametrize(
    ("pairs", "code", "line"),
    [
        ([('"127.0.0.1:8000:8000"', '"8000:8000"')], "RG922", 6),
        ([('"127.0.0.1:8000:8000"', "{target: 8000, published: 8000}")], "RG922", 6),
        ([('"127.0.0.1:8001:8001"', '"0.0.0.0:8001:8001"')], "RG922", 6),
        ([('"127.0.0.1:8001:8001"', '"${ADDRESS:-0.0.0.0}:8001:8001"')], "RG922", 6),
        ([(":ro", ":rw")], "RG923", 7),
        ([('["./model_repository:/models:ro"]', "[{type: bind, source: ./m, target: /models}]")], "RG923", 7),
        ([("/models:ro", "/:rw")], "RG923", 7),
        ([('"1000:1000"', '"0:0"')], "RG927", 2),
        ([('"1000:1000"', "root")], "RG927", 2),
        ([('"no-new-privileges:true"', "")], "RG929", 2),
        ([("    cap_drop", "    privileged: true\n    cap_drop")], "RG929", 2),
        ([("    mem_limit", "    ipc: host\n    mem_limit")], "RG930", 2),
        ([("    mem_limit: 8g\n", "    environment: [GRAFANA_PASSWORD=x]\n    mem_limit: 8g\n")], "RG931", 13),
    ],
)
def test_found_in_compose(found, pairs, code, line):
    assert found(changed(_COMPOSE, *pairs)) == {code: line}


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [('"127.0.0.1:8000:8000"', "{target: 8000, published: 8000, host_ip: 127.0.0.1}")],
        [('"127.0.0.1:8000:8000"', '"localhost:8000:8000"')],
        [('["./model_repository:/models:ro"]', "[{type: bind, source: ./m, target: /models, read_only: true}]")],
        [("--model-repository=/models", "--model-repository, /models")],
        [("    mem_limit: 8g\n", "    deploy: {resources: {limits: {memory: 8g}}}\n")],
        [("    mem_limit", "    environment: {DB_PASSWORD_FILE: /run/secrets/db, TOKEN: '${TOKEN}'}\n    mem_limit")],
        [("--model-control-mode=explicit", "--model-control-mode=none"), ("127.0.0.1:8001:8001", "8001:8001")],
    ],
)
def test_nothing_to_mend_in_compose(found, pairs):
    assert found(changed(_COMPOSE, *pairs)) == {}


def test_a_restricted_api_may_be_public(found):
    restricted = "--grpc-restricted-protocol=model-repository:admin-key=${KEY}"
    pairs = [("127.0.0.1:8001:8001", "8001:8001"), ("      --disable", f'      "{restricted}", --disable')]
    assert found(changed(_COMPOSE, *pairs)) == {}
    pairs[1] = ("      --disable", '      "--grpc-restricted-protocol=model-repository:admin-key=abc", --disable')
    assert set(found(changed(_COMPOSE, *pairs))) == {"RG931"}, "the key itself stands there"


EXPLICIT = ("--disable", "--model-control-mode=explicit, --load-model=*, --disable")


@pytest.mark.parametrize(
    ("pairs", "codes"),
    [
        ([], set()),
        ([EXPLICIT], {"RG922"}),
        ([EXPLICIT, ("--disable", "--grpc-restricted-protocol=model-repository:k=$(K), --allow-http=false, --disable")], set()),
        ([EXPLICIT, ("--disable", "--grpc-restricted-protocol=health:k=$(K), --allow-http=false, --disable")], {"RG922"}),
        ([(", readOnly: true", "")], {"RG923"}),
        ([("{runAsNonRoot: true}", "{}")], {"RG927"}),
        ([("{runAsNonRoot: true}", "{runAsUser: 1000}")], set()),
        ([("        readOnlyRootFilesystem: true\n", "")], {"RG928"}),
        ([("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true")], {"RG929"}),
        ([("spec:\n", "spec:\n  hostIPC: true\n")], {"RG930"}),
        ([("{limits: {memory: 8Gi}}", "{}")], {"RG932"}),
        ([("      resources", "      env: [{name: API_TOKEN, value: abc}]\n      resources")], {"RG931"}),
        (
            [("      resources", "      env: [{name: API_TOKEN, valueFrom: {secretKeyRef: {name: a, key: b}}}]\n      resources")],
            set(),
        ),
    ],
)  # fmt: skip
def test_kubernetes(found, pairs, codes):
    assert set(found(changed(_POD, *pairs), "pod.yaml")) == codes


def test_several_documents_and_every_kind_of_pod(tmp_path):
    spec = "{containers: [{name: c, image: i}]}"
    (tmp_path / "all.yaml").write_text(
        f"kind: Pod\nspec: {spec}\n---\n---\nkind: Deployment\nspec: {{template: {{spec: {spec}}}}}\n---\n"
        f"kind: CronJob\nspec: {{jobTemplate: {{spec: {{template: {{spec: {spec}}}}}}}}}\n---\nkind: Service\nspec: {{}}\n"
    )
    assert [(it.name, it.line_of("image")) for it in read_services([tmp_path])] == [("c", 2), ("c", 6), ("c", 9)]


def test_what_a_merge_key_brings_counts(found):
    text = _COMPOSE.replace("services:\n  triton:\n", "x-all: &all\n")
    text = text.replace("\n    ", "\n  ").replace("    image", "  image", 1)
    assert found(f"{text}services:\n  triton:\n    <<: *all\n") == {}
    worse = found(f"{text}services:\n  triton:\n    <<: *all\n    ports: ['8001:8001']\n")
    assert worse == {"RG922": len(text.splitlines()) + 4}


def test_the_command(tmp_path, invoke):
    (tmp_path / "models").mkdir()
    (tmp_path / "compose.yml").write_text(_COMPOSE.replace("26.08", "25.03"))
    arguments = ["check", tmp_path / "models", "--profile", "production", "--deployment", tmp_path / "compose.yml"]
    said = json.loads(invoke(*arguments, "--json", code=1).stdout)
    assert [(it["code"], it["model"]) for it in said["findings"]] == [("RG920", "triton")]
    assert said["findings"][0]["where"] == f"{tmp_path / 'compose.yml'}:3"
    assert "development only" in invoke(*arguments, "--server", "embedded", code=1).stderr


def test_development_does_not_look_at_deployments(tmp_path, invoke):
    (tmp_path / "models").mkdir()
    (tmp_path / "models/docker-compose.yml").write_text(_COMPOSE.replace("26.08", "25.03"))
    assert "nothing to mend" in invoke("check", tmp_path / "models").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profile", "production"], "repogen export"),
        (["--profile", "production", "--deployment", "nowhere.yml"], "nowhere.yml: there is no such file"),
        (["--deployment", "x.yml"], "--profile production"),
    ],
)
def test_asked_wrongly(tmp_path, invoke, arguments, said):
    (tmp_path / "models").mkdir()
    assert said in invoke("check", tmp_path / "models", *arguments, code=2).stderr


def test_a_file_that_is_no_yaml(tmp_path, invoke):
    (tmp_path / "models").mkdir()
    (tmp_path / "c.yml").write_text("a: [\n")
    arguments = ["check", tmp_path / "models", "--profile", "production", "--deployment", tmp_path / "c.yml"]
    assert "c.yml:2: not valid YAML" in invoke(*arguments, code=2).stderr
