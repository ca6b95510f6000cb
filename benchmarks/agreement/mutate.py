"""Change valid repositories at random: any field of the message tree, the text itself, the folders."""

import random
import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from repogen import pbtxt
from repogen.check.rule import Tree

_INTEGERS = (-(2**31), -5, -2, -1, 0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 100, 1000, 2**31 - 1)
_COUNTS = (-1, 0, 1, 2)
"""Of instances and warm-up runs: each is a process, or a request."""
_DIMS = (-2, -1, -1, 0, 1, 2, 3, 4, 4, 5, 8, 2**40)
_FLOATS = (-1.0, 0.0, 0.5, 1.0, 2.0)
_STRINGS = (
    "",
    "x",
    "y",
    "z",
    "t",
    "m",
    "a",
    "b",
    "e",
    "nope",
    "a b",
    "../up",
    "é",
    'q"u',
    "0",
    "1",
    "python",
    "model.py",
)
_TOKENS = (
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    ";",
    "<",
    ">",
    '"',
    "'",
    "#",
    "0x10",
    "1.5",
    "-1",
    "true",
    "1e3",
    "08",
    "3f",
    "\t",
)
_FOLDERS = ("01", "v2", "2", "2.tmp", "0", "-1", "1.old", "3x", "configs", "7")
_VALID_ENUM = 0.85
_DOUBLE_EDIT = 0.25


def mutations(bases: dict[str, Tree], count: int, seed: int) -> Iterator[tuple[str, Tree]]:
    """Return `count` named repositories, the same ones for the same seed."""
    names = sorted(bases)
    for number in range(count):
        dice = random.Random(f"{seed}/{number}")
        name = dice.choice(names)
        kind = dice.choices(("field", "text", "folder"), (76, 16, 8))[0]
        yield f"{number}:{name}:{kind}", _mutated(dict(bases[name]), kind, dice)


def _mutated(tree: dict[str, Any], kind: str, dice: random.Random) -> Tree:
    path = dice.choice(sorted(name for name in tree if name.endswith("/config.pbtxt")))
    if kind == "folder":
        return _with_folder(tree, path.removesuffix("config.pbtxt"), dice)
    if kind == "text":
        return {**tree, path: _edited(tree[path], dice)}
    config = pbtxt.parse(tree[path])
    for _ in range(2 if dice.random() < _DOUBLE_EDIT else 1):
        _edit(config, dice)
    return {**tree, path: str(text_format.MessageToString(config, as_utf8=True))}


def _with_folder(tree: dict[str, Any], model: str, dice: random.Random) -> Tree:
    version = next((name for name in sorted(tree) if name.startswith(f"{model}1/")), f"{model}1/model.py")
    new = dice.choice(_FOLDERS)
    choice = dice.choice(("add", "rename", "empty", "drop"))
    if choice in ("add", "rename"):
        tree[version.replace(f"{model}1/", f"{model}{new}/")] = tree.get(version, "")
    if choice == "empty":
        tree[f"{model}{new}/"] = ""
    if choice in ("rename", "drop"):
        tree.pop(version, None)
    return tree


def _edited(text: str, dice: random.Random) -> str:
    at = dice.randrange(len(text))
    lines = text.splitlines(keepends=True)
    line = dice.randrange(len(lines))
    return dice.choice(
        (
            lambda: text[:at] + text[at + 1 :],
            lambda: text[:at] + dice.choice(_TOKENS) + text[at:],
            lambda: text[:at],
            lambda: "".join(lines[:line] + lines[line + 1 :]),
            lambda: "".join(lines[: line + 1] + lines[line:]),
            lambda: text.replace("{", "<").replace("}", ">"),
            lambda: re.sub(r"\b(\w+) \{", r"\1: {", text),
            lambda: text.replace('"', "'"),
            lambda: text.replace("true", dice.choice(("True", "1", "t", "yes", "TRUE"))),
            lambda: re.sub(r"\b\d+\b", lambda _: dice.choice(_TOKENS[11:]), text, count=1),
            lambda: text.replace(" dims", ", dims").replace(" data_type", "; data_type"),
        )
    )()


def _edit(config: Any, dice: random.Random) -> None:
    """Change one field of one message, chosen among all messages that are set."""
    message = dice.choice([one for one in _messages(config) if one.DESCRIPTOR.fields])
    field = dice.choice(message.DESCRIPTOR.fields)
    if _is_map(field):
        _edit_map(message, field, dice)
    elif field.is_repeated:
        _edit_list(message, field, dice)
    elif dice.random() < 0.3:
        message.ClearField(field.name)
    elif field.message_type is not None:
        _fill(getattr(message, field.name), dice)
    else:
        setattr(message, field.name, _value(field, dice))


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if _is_map(field):
            if field.message_type.fields_by_name["value"].message_type is not None:
                for item in value.values():
                    yield from _messages(item)
        else:
            for item in value if field.is_repeated else [value]:
                yield from _messages(item)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _edit_map(message: Any, field: FieldDescriptor, dice: random.Random) -> None:
    entries = getattr(message, field.name)
    if entries and dice.random() < 0.5:
        entries.pop(dice.choice(sorted(entries)))
        return
    key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
    if value.message_type is not None:
        _fill(entries[_value(key, dice)], dice)
    else:
        entries[_value(key, dice)] = _value(value, dice)


def _edit_list(message: Any, field: FieldDescriptor, dice: random.Random) -> None:
    items = getattr(message, field.name)
    choice = dice.choice(("add", "copy", "remove", "clear", "change"))
    if choice == "add" or not items:
        if field.message_type is not None:
            _fill(items.add(), dice)
        else:
            items.append(_value(field, dice))
    elif choice == "copy":
        items.append(dice.choice(list(items)))
    elif choice == "remove":
        del items[dice.randrange(len(items))]
    elif choice == "clear":
        message.ClearField(field.name)
    elif field.message_type is None:
        items[dice.randrange(len(items))] = _value(field, dice)
    else:
        _fill(dice.choice(list(items)), dice)


def _fill(message: Any, dice: random.Random) -> None:
    """Set about half of the plain fields of a message, so that it is there."""
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        if dice.random() < 0.5 or field.message_type is not None:
            continue
        if field.is_repeated:
            getattr(message, field.name).append(_value(field, dice))
        else:
            setattr(message, field.name, _value(field, dice))


def _value(field: FieldDescriptor, dice: random.Random) -> Any:
    if field.enum_type is not None:
        known = sorted(field.enum_type.values_by_number)
        return dice.choice(known) if dice.random() < _VALID_ENUM else 99
    if field.type == FieldDescriptor.TYPE_BOOL:
        return dice.random() < 0.5
    if field.type == FieldDescriptor.TYPE_STRING:
        return dice.choice(_STRINGS)
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return dice.choice(_FLOATS)
    choices = _COUNTS if field.name == "count" else _DIMS if field.name in ("dims", "shape") else _INTEGERS
    unsigned = field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)
    return dice.choice([value for value in choices if value >= 0] if unsigned else choices)
