"""The written boundary cases, next to the examples of the rules."""

from agreement import cases_ensembles, cases_files, cases_odds, cases_scheduling, cases_tensors, cases_text
from agreement.made import sequences, swapped
from repogen.check.ensemble_examples import ensemble
from repogen.check.examples import CONFIG, MODEL_PY, python_model
from repogen.check.rule import Tree


def _named(mark: str) -> Tree:
    """Return a model whose name holds `mark`, which may stand in no string."""
    name = f"a{mark}b"
    return {f"{name}/config.pbtxt": CONFIG.replace('name: "m"\n', ""), f"{name}/1/model.py": MODEL_PY}


CASES: dict[str, Tree] = {
    **cases_files.CASES,
    **cases_tensors.CASES,
    **cases_scheduling.CASES,
    **cases_ensembles.CASES,
    **cases_odds.CASES,
    **cases_text.CASES,
    **{f"name with {mark}": _named(mark) for mark in '!#$&()=[]^_`{|}~;<>?"'},
    **{
        f"group named {name}": swapped("kind: KIND_CPU", f'kind: KIND_CPU name: "{name}"')
        for name in ("a b", "é", "a'b", "a$b", "a/b", "../up", "a;b", "a#b", "a\\\\b", 'q\\"u')
    },
    **{
        f"ensemble with the folders {', '.join(names)}": {
            **{path: text for path, text in ensemble().items() if path != "e/1/"},
            **{f"e/{name}/": "" for name in names},
        }
        for names in (("1.old",), ("1", "2.tmp"), ("-1",), ("-3",), ("v1",), ("01",))
    },
    **{
        f"metric tag {key}": python_model(f'metric_tags {{ key: "{key}" value: "v" }}')
        for key in ("__a", "1a", "a:b", "model", "version", "gpu_uuid", "a-b", "a b", "a", "A1_", "é")
    },
    **{
        f"metric tag of value {value}": python_model(f'metric_tags {{ key: "k" value: "{value}" }}')
        for value in ("a\\nb", 'a\\"b', "é", "")
    },
    **{
        f"{count} candidates": sequences(f"oldest {{ max_candidate_sequences: {count} }}")
        for count in (10**5, 10**6, 10**7, 10**8)
    },
    **{
        f"{size} direct slots": swapped("size: 8", f"size: {size}", added="sequence_batching { }")
        for size in (10**5, 10**6, 10**7, 10**8, 2**31 - 1)
    },
    **{
        f"{count} priorities": python_model(
            f"dynamic_batching {{ priority_levels: {count} default_priority_level: 1 }}"
        )
        for count in (10**5, 10**7, 10**9, 2**64 - 1)
    },
}

OWN_SERVER = frozenset(
    {
        "cycle own",
        "empty root dir",
        "root dangling",
        "root file",
        "root hidden",
        "root loop link",
        "root ok",
    }
)
"""What is about the root: judged by whether a server of its own starts with all its models."""

SLOW = frozenset(
    {
        "-0",
        "all v-1 v1",
        "all v-3 v1",
        "all v1 ok v2 empty",
        "default file",
        "emptyver",
        "latest2 v-3 v1",
        "name backslash",
        "name quote",
        "name space",
        "name tab",
        "name trailing space",
        "nobackend a.python",
        "nobackend model name",
        "py at top",
        "v 1",
        "v+1",
        "v-3",
        "v1 ok v2 empty",
        "v1+2.tmp",
        "v1_old",
        "v2.tmp",
        "wronginner",
        "wu huge b",
        *(f"group named {name}" for name in ("a'b", "a;b", 'q\\"u')),
        *(f"name with {mark}" for mark in '$&()`|;<>"'),
        *(f"{count} candidates" for count in (10**7, 10**8)),
        *(f"{size} direct slots" for size in (10**7, 10**8)),
    }
)
"""What never becomes ready, so that each takes the whole deadline: left out of the quick test."""
