"""RG90x: what lets others in, or leads out of the repository."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from repogen.check.examples import MODEL_PY, python_model, world_writable
from repogen.check.rule import File, Link, Problem, Rule
from repogen.check.subject import Subject

_SECRET = re.compile(r"(?i)(^|[_-])(password|passwd|secret|token|api[_-]?key|private[_-]?key|access[_-]?key)($|[_-])")


def _writable(subject: Subject) -> Iterator[Problem]:
    folder = subject.model.folder
    open_ones = [""] if subject.model.kind == "folder" and world_writable(folder) else []
    open_ones += sorted(name for name in subject.model.entries if world_writable(folder / name))
    if open_ones:
        more = f", and {len(open_ones) - 1} more" if len(open_ones) > 1 else ""
        yield Problem(f"anyone may write it{more}", file=open_ones[0], hint="chmod -R o-w")


def _writable_root(subject: Subject) -> Iterator[Problem]:
    if world_writable(subject.model.folder):
        yield Problem("anyone may add models, and the code in them runs in the server", hint="chmod o-w")


def _unreadable(subject: Subject) -> Iterator[Problem]:
    closed = sorted(name for name in subject.model.entries if not _others_read(subject.model.folder / name))
    if closed:
        more = f", and {len(closed) - 1} more" if len(closed) > 1 else ""
        message = f"only its owner may read it{more}: Triton runs as another user in its containers"
        yield Problem(message, file=closed[0], hint="folders 0755, files 0644")


def _others_read(path: Path) -> bool:
    if path.is_symlink():
        return True
    mode = path.stat().st_mode
    return bool(mode & 0o004) and (not path.is_dir() or bool(mode & 0o001))


def _leaves(name: str) -> bool:
    """Return whether a path below a folder climbs out of it."""
    return os.path.normpath(name).startswith("..") or name.startswith("/")


def _labels_outside(subject: Subject) -> Iterator[Problem]:
    folder = subject.model.folder.resolve()
    for index, tensor in enumerate(subject.config.output):
        if tensor.label_filename:
            path = (folder / tensor.label_filename.lstrip("/")).resolve()
            if not path.is_relative_to(folder) and path.exists():
                yield Problem(
                    f"the labels {tensor.label_filename!r} lie outside the model's folder",
                    field=f"output[{index}].label_filename",
                    hint="copy the file beside config.pbtxt: links count as where they lead",
                )


def _file_outside(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    named = [("default_model_filename", config.default_model_filename)]
    named += [
        (f"model_warmup[{index}].inputs[{number}].value.input_data_file", given.input_data_file)
        for index, sample in enumerate(config.model_warmup)
        for number, given in enumerate(sample.inputs.values())
    ]
    named += [
        (f"sequence_batching.state[{index}].initial_state[{number}].data_file", initial.data_file)
        for index, state in enumerate(config.sequence_batching.state)
        for number, initial in enumerate(state.initial_state)
    ]
    named += [(f"cc_model_filenames[{i}]", name) for i, name in enumerate(config.cc_model_filenames.values())]
    for field, name in named:
        if name and _leaves(name):
            yield Problem(f"{name!r} leads out of the folder that it is looked for in", field=field)


def _links_outside(subject: Subject) -> Iterator[Problem]:
    root = subject.repository.root.resolve()
    folder = subject.model.folder
    for name in sorted(subject.model.entries):
        path = folder / name
        if path.is_symlink() and path.exists() and not path.resolve().is_relative_to(root):
            yield Problem(f"a link out of the repository, to {path.readlink()}", file=name)


def _secrets(subject: Subject) -> Iterator[Problem]:
    for index, (key, value) in enumerate(subject.config.parameters.items()):
        if _SECRET.search(key) and value.string_value:
            message = f"the parameter {key!r} looks like a secret: anyone who may ask for the config can read it"
            yield Problem(message, field=f"parameters[{index}]", hint="give it to the server's environment")


RULES: tuple[Rule, ...] = (
    Rule(
        "RG901",
        "warning",
        "Anyone may write a model's files",
        "The code of a Python model and the path of a library in a config run in the server.",
        _writable,
        bad=python_model(files={"m/1/model.py": File(MODEL_PY, 0o666)}),
        good=python_model(files={"m/1/model.py": File(MODEL_PY, 0o644)}),
        scope="model",
    ),
    Rule(
        "RG902",
        "warning",
        "Anyone may write the repository",
        "A server in POLL mode loads and runs whatever model is put there.",
        _writable_root,
        bad={**python_model(), "./": File("", 0o777)},
        good={**python_model(), "./": File("", 0o755)},
        scope="root",
    ),
    Rule(
        "RG903",
        "error",
        "Labels lie outside the model's folder",
        "Triton 2.51 reads them; newer servers refuse the model, since a config could show any file of the machine.",
        _labels_outside,
        bad=python_model(
            replaced={'name: "y"': 'label_filename: "../labels.txt" name: "y"'}, files={"labels.txt": "cat\n"}
        ),
        good=python_model(
            replaced={'name: "y"': 'label_filename: "labels.txt" name: "y"'}, files={"m/labels.txt": "cat\n"}
        ),
        stricter="newer servers refuse it, and it shows files of the machine to clients",
    ),
    Rule(
        "RG904",
        "error",
        "A file name leads out of its folder",
        "A model that reads the files of another, or of the machine, is no unit that can be published or rolled back.",
        _file_outside,
        bad=python_model('default_model_filename: "../model.py"', files={"m/model.py": MODEL_PY}),
        good=python_model('default_model_filename: "model.py"'),
        stricter="the version served is not the version published, and a config can read any file",
    ),
    Rule(
        "RG905",
        "warning",
        "A link leads out of the repository",
        "It is broken wherever the repository is mounted alone, as in a container.",
        _links_outside,
        bad=python_model(files={"m/1/data": Link("/etc/hostname")}),
        good=python_model(files={"m/1/data": ""}),
        scope="model",
    ),
    Rule(
        "RG906",
        "warning",
        "A secret in the config",
        "Parameters are part of the config that the server tells every client.",
        _secrets,
        bad=python_model('parameters { key: "api_key" value { string_value: "abc" } }'),
        good=python_model('parameters { key: "max_tokens" value { string_value: "128" } }'),
    ),
    Rule(
        "RG907",
        "warning",
        "The server may not be able to read a file",
        "In NVIDIA's images Triton can run as the user triton-server, and in Kubernetes it does.",
        _unreadable,
        bad=python_model(files={"m/1/weights.bin": File("", 0o600)}),
        good=python_model(files={"m/1/weights.bin": File("", 0o644)}),
        scope="model",
    ),
)
