import pytest

from repogen import triton_log

START = 'I1201 03:02:27.783968 5853 model_lifecycle.cc:472] "loading: a:1"\n'
TRACE = (
    "E1201 02:58:19.978064 4792 model_lifecycle.cc:642] \"failed to load 'a' version 1: Internal: "
    "ValueError: no such thing\\nsecond line\\n\\nAt:\\n  /r/a/1/model.py(2): helper\\n"
    '  /r/a/1/model.py(4): initialize\\n"\n'
)
SYNTAX = (
    "[libprotobuf ERROR /t/text_format.cc:337] Error parsing text-format inference.ModelConfig: 3:14: "
    'Message type "inference.ModelConfig" has no field named "max_batchsize".\n'
    "E1201 03:02:27.783823 5853 model_repository_manager.cc:1460] \"Poll failed for model directory 'typo': "
    'failed to read text proto from r/typo/config.pbtxt"\n'
)
NOISE = 'E1201 02:58:19.615535 4792 server.cc:241] "CudaDriverHelper has not been initialized."\n'
CASES = [
    pytest.param(TRACE, ["a: ValueError: no such thing second line (at /r/a/1/model.py:2)"], id="python-traceback"),
    pytest.param(
        SYNTAX,
        [
            'typo: config.pbtxt:3:14: Message type "inference.ModelConfig" has no field named "max_batchsize".',
        ],
        id="config-syntax",
    ),
    pytest.param(
        "E1201 03:02:27.7 5853 model_repository_manager.cc:724] \"failed to load model 'n': at least one version "
        "must be available under the version policy of model 'n'\"\n",
        ["n: at least one version must be available under the version policy of model 'n'"],
        id="no-version",
    ),
    pytest.param(
        "E1201 03:02:28.816366 5853 model_lifecycle.cc:642] \"failed to load 'e' version 1: Internal: Stub process "
        "'e_0_0' is not healthy.\"\n",
        ["e: the Python process of e ended while it was loading"],
        id="stub-ended",
    ),
    pytest.param(
        "I1201 03:02:27.808326 5874 pb_stub.cc:2105]  Failed to preinitialize Python stub: Python model file not "
        "found in 'r/n/1/model.py'\n",
        ["Python model file not found in 'r/n/1/model.py'"],
        id="no-model-file",
    ),
]


@pytest.mark.parametrize(("log", "expected"), CASES)
def test_reasons(log, expected):
    assert triton_log.reasons(START + NOISE + log) == expected
    assert triton_log.failed(log)


def test_errors_without_a_model():
    log = (
        'E1201 03:02:42.096125 6014 main.cc:245] "failed to start GRPC service: Unavailable - Socket '
        "'127.0.0.1:18001' already in use \"\nerror: creating server: Internal - failed to load all models\n"
    )
    assert triton_log.reasons(NOISE + log) == [
        "failed to start GRPC service: Unavailable - Socket '127.0.0.1:18001' already in use",
    ]
    assert triton_log.port_taken(log)
    assert not triton_log.failed(log)


def test_loading():
    other = START.replace("a:1", "b:1")
    loaded = "I1201 03:02:27.9 5853 model_lifecycle.cc:839] \"successfully loaded 'b'\"\n"
    assert triton_log.loading(START + other + loaded) == ["a"]
