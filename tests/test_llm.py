import json

import pytest

from repogen import pbtxt
from repogen.check.engine import check_repository
from repogen.check.target import target_of
from repogen.desired import desired_models
from repogen.embedded import embed
from repogen.errors import ManifestError, ServerError


def models(folder, *entries):
    text = "".join(f"  m{index}: {{{entry}}}\n" for index, entry in enumerate(entries))
    path = folder / "repogen.yaml"
    path.write_text(f'triton: "26.08"\nrepository: served/models\nmodels:\n{text}')
    return desired_models(path)


def one(folder, entry):
    return models(folder, entry)[0]


def test_vllm_over_several_gpus_places_itself(tmp_path):
    model = one(
        tmp_path,
        "backend: vllm, source: org/model, llm: {tensor_parallel: 2, pipeline_parallel: 2, gpus: [4, 5, 6, 7], kv_cache_fraction: 0.8}",
    )
    config = pbtxt.intended(model, "")
    assert config.model_transaction_policy.decoupled
    assert config.max_batch_size == 0
    assert [(group.kind, group.count) for group in config.instance_group] == [(config.instance_group[0].KIND_MODEL, 1)]
    assert config.parameters["GPU_DEVICE_IDS"].string_value == "4,5,6,7"
    assert {it.name: it.optional for it in config.input}["text_input"] is False
    (file,) = model.extra_files
    assert file.name == "1/model.json"
    told = json.loads(file.content)
    assert (told["tensor_parallel_size"], told["pipeline_parallel_size"], told["gpu_memory_utilization"]) == (2, 2, 0.8)


def test_copies_of_one_gpu_each_are_tritons_to_place(tmp_path):
    config = pbtxt.intended(one(tmp_path, "backend: vllm, source: org/model, llm: {replicas: 2}"), "")
    (group,) = config.instance_group
    assert (group.kind, group.count, list(group.gpus)) == (group.KIND_GPU, 1, [0, 1])


def test_tensorrtllm_is_told_where_each_copy_runs(tmp_path):
    model = one(
        tmp_path,
        "backend: tensorrtllm, source: /engines/m, max_batch_size: 16, llm: {tensor_parallel: 2, replicas: 2, kv_cache_fraction: 0.5}",
    )
    config = pbtxt.intended(model, "")
    told = {key: config.parameters[key].string_value for key in config.parameters}
    assert (told["gpu_device_ids"], told["kv_cache_free_gpu_mem_fraction"]) == ("0,1;2,3", "0.5")
    assert told["gpt_model_path"] == "/engines/m"
    assert config.instance_group[0].count == 2
    assert config.max_batch_size == 16
    assert config.model_transaction_policy.decoupled
    ids = next(it for it in config.input if it.name == "input_ids")
    assert ids.allow_ragged_batch
    plain = one(tmp_path, "backend: tensorrtllm, source: /engines/m, llm: {streaming: false, batching: static}")
    assert not pbtxt.intended(plain, "").model_transaction_policy.decoupled
    assert plain.parameters["gpt_model_type"] == "V1"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("backend: vllm, source: m, llm: {tensor_parallel: 4, gpus: [0, 1]}", r"llm.gpus: 2 GPUs are named, and tensor_parallel 4 x pipeline_parallel 1 x replicas 1 takes 4"),
        ("backend: vllm, source: m, llm: {gpus: [1, 1], replicas: 2}", "a GPU is named twice"),
        ("backend: vllm, source: m, llm: {tensor_parallel: 2, replicas: 2}", "one entry for each copy"),
        ("backend: vllm, source: m, max_batch_size: 8", "vLLM batches by itself"),
        ("backend: vllm, source: m, llm: {kv_cache_fraction: 1.5}", "kv_cache_fraction"),
        ("backend: tensorrtllm, source: m, llm: {quantization: fp8}", "is built into the engine"),
        ("backend: vllm, source: m, instances: [{kind: gpu}]", "does not go with backend: vllm"),
        ("source: m.onnx, llm: {}", "goes with backend: vllm or tensorrtllm"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(tmp_path, entry, message):
    with pytest.raises(ManifestError, match=message):
        one(tmp_path, entry)


def test_a_gpu_is_promised_once(tmp_path):
    with pytest.raises(ManifestError, match="GPU 0 is promised to m0 90% and m1 90%"):
        models(tmp_path, "backend: vllm, source: a", "backend: vllm, source: b")
    half = "backend: vllm, source: a, llm: {kv_cache_fraction: 0.45}"
    assert len(models(tmp_path, half, half)) == 2


def test_an_engine_says_what_it_was_built_for(tmp_path):
    (tmp_path / "engine").mkdir()
    facts = {"pretrained_config": {"mapping": {"tp_size": 2, "pp_size": 1}}, "build_config": {"max_batch_size": 8}}
    (tmp_path / "engine" / "config.json").write_text(json.dumps(facts))
    with pytest.raises(ManifestError, match="tensor_parallel: the engine was built for 2, the manifest says 1"):
        one(tmp_path, "backend: tensorrtllm, source: engine")
    with pytest.raises(ManifestError, match="16 is asked, but the engine was built for 8"):
        one(tmp_path, "backend: tensorrtllm, source: engine, max_batch_size: 16, llm: {tensor_parallel: 2}")
    (tmp_path / "engine" / "config.json").write_text("{}")
    with pytest.raises(ManifestError, match="does not describe an engine"):
        one(tmp_path, "backend: tensorrtllm, source: engine")


def test_the_repository_passes_the_check_and_no_embedded_server_takes_it(tmp_path, invoke):
    entries = ("backend: vllm, source: a, llm: {gpus: [0]}", "backend: tensorrtllm, source: /e, llm: {gpus: [1]}")
    found = models(tmp_path, *entries)
    invoke("sync", "-f", tmp_path / "repogen.yaml")
    assert check_repository(tmp_path / "served" / "models", target_of("26.08")) == []
    with pytest.raises(ServerError, match="the embedded server has no vllm backend"):
        embed(found[0], cpus=1)
