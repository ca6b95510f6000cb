"""RG1xx: what stands in the repository, and how its folders are named."""

import re
from collections.abc import Iterator

from repogen.check.autofill import ENSEMBLE
from repogen.check.examples import CONFIG, MODEL_PY, python_model
from repogen.check.rule import File, Link, Problem, Rule
from repogen.check.subject import CONFIG as CONFIG_FILE
from repogen.check.subject import Subject, version_of

_INT64_MAX = 2**63 - 1
_PLAIN_VERSION = re.compile(r"(0|[1-9]\d*)\Z")
_LOOKS_LIKE_VERSION = re.compile(r"[vV]?[-+ ]?\d[\w.\- ]*\Z")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_BREAKS_SHELL = frozenset(" \t\n\"'\\$&()`|;<>")
_MODEL_FILES = (".onnx", ".plan", ".pt", ".pbtxt")


def _unreadable(subject: Subject) -> Iterator[Problem]:
    model = subject.model
    if model.kind == "dangling":
        yield Problem("this link leads nowhere, and the server then sees no model at all", hint="remove it")
    elif model.kind == "unreadable":
        yield Problem("this entry cannot be read", hint="remove it, or mend its permissions")


def _stray_file(subject: Subject) -> Iterator[Problem]:
    if subject.model.kind == "file" and subject.model.name.endswith(_MODEL_FILES):
        yield Problem(
            "a file in the root is ignored by the server",
            hint="a model is a folder: NAME/config.pbtxt and NAME/1/model.onnx",
        )


def _no_config(subject: Subject) -> Iterator[Problem]:
    model = subject.model
    if model.text is None and model.error is None:
        hidden = " (hidden folders are not skipped)" if model.name.startswith(".") else ""
        yield Problem(
            f"there is no {CONFIG_FILE}: the server takes every folder of the root for a model{hidden}",
            hint="write one, or move the folder out of the repository",
        )


def _dangling_inside(subject: Subject) -> Iterator[Problem]:
    folder = subject.model.folder
    for name in sorted(path.name for path in folder.iterdir() if path.is_symlink() and not path.exists()):
        yield Problem("this link leads nowhere, and the server refuses the model for it", file=name, hint="remove it")


def _dangling_below(subject: Subject) -> Iterator[Problem]:
    folder = subject.model.folder
    for name in sorted(subject.model.files):
        if "/" in name and (path := folder / name).is_symlink() and not path.exists():
            yield Problem("this link leads nowhere", file=name, hint="remove it")


def _no_version(subject: Subject) -> Iterator[Problem]:
    model = subject.model
    if model.served:
        return
    if not model.versions:
        found = f": {', '.join(model.version_folders)} are not versions" if model.version_folders else ""
        yield Problem(f"there is no version folder{found}", hint=f"put the model's files in {model.name}/1")
    else:
        have = ", ".join(map(str, model.versions))
        yield Problem(f"version_policy chooses none of the versions {have}", field="version_policy")


def _misread_version(subject: Subject) -> Iterator[Problem]:
    model = subject.model
    if model.backend == ENSEMBLE:
        return  # an ensemble has nothing to look for in its version's folder
    for version in model.served:
        if str(version) not in model.folders and 0 <= version <= _INT64_MAX:
            folder = next(name for name in model.version_folders if version_of(name) == version)
            yield Problem(
                f"the server reads this name as version {version}, looks for {model.name}/{version} and waits for ever",
                file=folder,
                hint="name version folders 1, 2, 3, and keep nothing else beside them",
            )


def _number_at_start(subject: Subject) -> Iterator[Problem]:
    model = subject.model
    for name in model.version_folders:
        version = version_of(name)
        if version is not None and str(version) != name and str(version) in model.folders:
            yield Problem(f"the server also reads this name as version {version}", file=name, hint="move it away")


def _version_overflow(subject: Subject) -> Iterator[Problem]:
    for name in subject.model.version_folders:
        version = version_of(name)
        if version is not None and not -_INT64_MAX - 1 <= version <= _INT64_MAX:
            yield Problem(
                "a version of more than 63 bits crashes the whole server, its other models too",
                file=name,
                hint="count versions from 1",
            )


def _negative_version(subject: Subject) -> Iterator[Problem]:
    for version in subject.model.served if subject.model.backend != ENSEMBLE else ():
        if -_INT64_MAX <= version < 0:
            yield Problem(f"version {version} never becomes ready", file=str(version), hint="count versions from 1")


def _ignored_version(subject: Subject) -> Iterator[Problem]:
    for name in subject.model.version_folders:
        if version_of(name) is None and _LOOKS_LIKE_VERSION.match(name):
            plain = re.sub(r"\D", "", name).lstrip("0") or "1"
            yield Problem("the server ignores this folder", file=name, hint=f"a version is a plain number: {plain}")


def _absent_versions(subject: Subject) -> Iterator[Problem]:
    policy = subject.config.version_policy
    for index, version in enumerate(policy.specific.versions):
        if version not in subject.model.versions and subject.model.served:
            field = f"version_policy.specific.versions[{index}]"
            yield Problem(f"there is no version {version}: only the log will say so", field=field)


def _odd_name(subject: Subject) -> Iterator[Problem]:
    name = subject.model.name
    if not _PLAIN_NAME.match(name) and not _breaks_stub(subject):
        yield Problem(
            f"the name {name!r} cannot be asked for over every protocol: HTTP does not decode names",
            hint="use letters, digits, '.', '_' and '-', at most 128, a letter or digit first",
        )


def _breaks_stub(subject: Subject) -> bool:
    name = subject.model.name
    return subject.model.backend == "python" and (not name.isascii() or bool(_BREAKS_SHELL & set(name)))


def _name_for_python(subject: Subject) -> Iterator[Problem]:
    if _breaks_stub(subject):
        yield Problem(
            f"the name {subject.model.name!r} goes through a shell and an ASCII codec: its process never starts",
            hint="use letters, digits, '.', '_' and '-'",
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "RG101",
        "error",
        "An entry of the root cannot be read",
        "One link to nothing makes the listing of the whole repository fail. A server in POLL mode then unloads every "
        "healthy model, and one that starts does not come up.",
        _unreadable,
        bad=python_model(files={"old": Link("/nowhere/at/all")}),
        good=python_model(),
        scope="entry",
    ),
    Rule(
        "RG102",
        "error",
        "A folder of the root is no model",
        "The server takes every folder for a model, hidden ones too, and at start it exits when one cannot be loaded.",
        _no_config,
        bad=python_model(files={".staging/1/model.py": MODEL_PY}),
        good=python_model(),
        scope="model",
    ),
    Rule(
        "RG103",
        "note",
        "A model file lies in the root",
        "Only folders are models: a file in the root is never served.",
        _stray_file,
        bad=python_model(files={"model.onnx": b""}),
        good=python_model(files={"README.md": "What is served here.\n"}),
        scope="entry",
    ),
    Rule(
        "RG104",
        "error",
        "A link in the model's folder leads nowhere",
        "The server asks for the state of every entry beside config.pbtxt, and refuses the model when one has none.",
        _dangling_inside,
        bad=python_model(files={"m/2": Link("../store/m-2")}),
        good=python_model(files={"m/2/model.py": MODEL_PY}),
        scope="model",
    ),
    Rule(
        "RG105",
        "error",
        "No version can be served",
        "A model needs a version folder, a plain number, that its version_policy chooses.",
        _no_version,
        bad={"m/config.pbtxt": CONFIG, "m/v1/model.py": MODEL_PY},
        good={"m/config.pbtxt": CONFIG, "m/1/model.py": MODEL_PY},
    ),
    Rule(
        "RG106",
        "error",
        "A folder is read as a version that does not exist",
        "Only the digits at the start of a folder's name are read: 2.tmp is version 2, and becomes the newest. The "
        "server then looks for the folder 2, and the load never ends.",
        _misread_version,
        bad=python_model(files={"m/2.tmp/model.py": MODEL_PY}),
        good=python_model(files={"m/2/model.py": MODEL_PY}),
    ),
    Rule(
        "RG107",
        "error",
        "A version number has more than 63 bits",
        "It crashes the server, with every model that it serves. Timestamps with nanoseconds and a suffix get there.",
        _version_overflow,
        bad=python_model(files={"m/20261201000000000000/model.py": MODEL_PY}),
        good=python_model(files={"m/20261201/model.py": MODEL_PY}),
        scope="model",
    ),
    Rule(
        "RG108",
        "warning",
        "A folder that looks like a version is ignored",
        "Names with a leading zero or a letter in front are not versions; only a line of the log says so.",
        _ignored_version,
        bad=python_model(files={"m/v2/model.py": MODEL_PY}),
        good=python_model(files={"m/2/model.py": MODEL_PY}),
        scope="model",
    ),
    Rule(
        "RG109",
        "error",
        "A negative version is chosen",
        "The server reads it as a version and then never gets it ready: -1 stands for the newest one in its own code.",
        _negative_version,
        bad={"m/config.pbtxt": CONFIG, "m/-3/model.py": MODEL_PY},
        good={"m/config.pbtxt": CONFIG, "m/3/model.py": MODEL_PY},
    ),
    Rule(
        "RG111",
        "warning",
        "version_policy names a version that is not there",
        "The other versions are served, and only the log mentions the missing one.",
        _absent_versions,
        bad=python_model("version_policy { specific { versions: [1, 2] } }"),
        good=python_model("version_policy { specific { versions: [1] } }"),
    ),
    Rule(
        "RG112",
        "warning",
        "A folder beside a version starts with the same number",
        "The server reads the digits at the start, so both names are one version to it. What is a copy today can "
        "become the newest version tomorrow.",
        _number_at_start,
        bad=python_model(files={"m/1.bak/model.py": MODEL_PY}),
        good=python_model(),
        scope="model",
    ),
    Rule(
        "RG113",
        "warning",
        "The model's name is awkward",
        "Names go into URLs undecoded, into metrics and into file names of the server.",
        _odd_name,
        bad=python_model(name="a+b"),
        good=python_model(name="a_b.v2"),
    ),
    Rule(
        "RG114",
        "error",
        "The Python backend cannot start a model of this name",
        "The name is part of a command line that a shell reads, and of a path that Python opens as ASCII.",
        _name_for_python,
        bad=python_model(name="a b"),
        good=python_model(name="a_b"),
    ),
    Rule(
        "RG115",
        "warning",
        "A link below a version folder leads nowhere",
        "The server does not look; whatever opens the file will fail.",
        _dangling_below,
        bad=python_model(files={"m/1/weights.bin": Link("../../../store/weights.bin")}),
        good=python_model(files={"m/1/weights.bin": File("", 0o644)}),
        scope="model",
    ),
)
