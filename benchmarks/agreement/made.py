"""Short ways to write the repositories of the cases."""

from repogen.check.ensemble_examples import ENSEMBLE
from repogen.check.examples import CONFIG, MODEL_PY, python_model
from repogen.check.rule import Tree

INPUT = "data_type: TYPE_FP32 dims: [4] }]\nout"
KIND = "kind: KIND_CPU"
ZEROS_OF_X = 'inputs { key: "x" value { data_type: TYPE_FP32 dims: [4] zero_data: true } }'
START = 'control_input [{ name: "START" control [{ kind: CONTROL_SEQUENCE_START fp32_false_true: [0,1] }] }]'
_Y = 'output [{ name: "y" data_type: TYPE_FP32 dims: [4] }]'


def swapped(old: str, new: str, *, added: str = "", files: Tree | None = None) -> Tree:
    """Return the plain model with one piece of its config changed."""
    return python_model(added, replaced={old: new}, files=files)


def versions(*names: str, extra: str = "", cfg: str = CONFIG) -> Tree:
    return {"m/config.pbtxt": cfg + extra, **{f"m/{name}/model.py": MODEL_PY for name in names}}


def batching(fields: str) -> Tree:
    return python_model(f"dynamic_batching {{ {fields} }}")


def sequences(fields: str, *, files: Tree | None = None) -> Tree:
    return python_model(f"sequence_batching {{ {fields} }}", files=files)


def warmup(fields: str, *, files: Tree | None = None) -> Tree:
    return python_model(f'model_warmup [{{ name: "w" {fields} }}]', files=files)


def output(fields: str, files: Tree | None = None) -> Tree:
    return python_model(replaced={_Y: f"{_Y.removesuffix('}]')}{fields} }}]"}, files=files)


def parts(
    *changes: tuple[str, str],
    added: str = "",
    m: dict[str, str] | None = None,
    n: dict[str, str] | None = None,
    ver: bool = True,
    files: Tree | None = None,
    parts: bool = True,
) -> Tree:
    """Return the ensemble `e` of the models `m` and `n`, with changes of each."""
    config = CHAIN
    for old, new in changes:
        assert old in config, old
        config = config.replace(old, new)
    called = {**python_model(replaced=m), **python_model(name="n", replaced=n)} if parts else {}
    return {"e/config.pbtxt": config + added, **({"e/1/": ""} if ver else {}), **called, **(files or {})}


CHAIN = ENSEMBLE.replace('model_name: "a"', 'model_name: "m"').replace('model_name: "b"', 'model_name: "n"')
