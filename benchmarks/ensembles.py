"""Break the two example pipelines in every way that people do, and ask `check` and the real server what they see.

    python benchmarks/ensembles.py [--mutations 60] [--seed 1] [--json FILE]

Each mutation is made so that the ensemble cannot work: names swapped or misspelt, other types, dims and batching
modes, circles, tensors that are missing or lead nowhere. `check` must name the edge at fault; the embedded server must
refuse the ensemble, or load it and fail a request. Its models answer zeros: it is the wiring that is tried. Prints a
table and writes {mutations, named, missed, server_disagrees}.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from agreement.judge import Judge, Verdict

from repogen import pbtxt
from repogen.check.engine import check_repository
from repogen.check.examples import MODEL_PY, write_tree
from repogen.check.findings import Finding
from repogen.check.rule import Tree
from repogen.check.target import target_of
from repogen.desired import chosen
from repogen.embedded import embed
from repogen.load.payload import pool
from repogen.model import ServedModel
from repogen.triton import Client

MANIFEST = Path(__file__).parents[1] / "examples" / "pipelines" / "repogen.yaml"
PIPELINES = ("ocr", "embed")
_TYPES = ("TYPE_FP32", "TYPE_INT64", "TYPE_UINT8", "TYPE_FP16")


@dataclass(frozen=True)
class Broken:
    """A pipeline that cannot work, and the words that a finding must have to name the edge."""

    kind: str
    pipeline: str
    what: str
    words: tuple[str, ...]
    configs: Mapping[str, Any]

    @property
    def tree(self) -> Tree:
        found: dict[str, str | bytes] = {}
        for name, config in self.configs.items():
            found[f"{name}/config.pbtxt"] = str(pbtxt.text_format.MessageToString(config))
            found[f"{name}/1/" if config.platform == "ensemble" else f"{name}/1/model.py"] = (
                "" if config.platform == "ensemble" else MODEL_PY
            )
        return found


class Pipeline:
    """One example pipeline's configs, to be broken: `step` and `config` hand out what a mutation may change."""

    def __init__(self, name: str, models: Sequence[ServedModel], rng: random.Random) -> None:
        self.name = name
        self.rng = rng
        self.configs = {model.name: pbtxt.intended(_light(model), "") for model in models}
        self.config = self.configs[name]
        self.steps = self.config.ensemble_scheduling.step

    def inner_edges(self) -> list[tuple[str, Any, str, Any, str]]:
        """Return (tensor, the step that makes it, its name there, a step that takes it, its name there)."""
        makers = {name: (step, key) for step in self.steps for key, name in step.output_map.items()}
        return [
            (name, *makers[name], step, key)
            for step in self.steps for key, name in step.input_map.items() if name in makers
        ]  # fmt: skip

    def edge(self) -> tuple[str, Any, str, Any, str]:
        return self.rng.choice(self.inner_edges())

    def tensor(self, model: str, part: str, name: str) -> Any:
        return next(it for it in getattr(self.configs[model], part) if it.name == name)


Mutation = Callable[[Pipeline], tuple[str, tuple[str, ...]]]


def swapped_inputs(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    """Two names of one step's inputs, of which types or shapes differ."""
    pairs = [
        (step, one, other)
        for step in it.steps for one in step.input_map for other in step.input_map
        if one < other and not _alike(*(it.tensor(step.model_name, "input", name) for name in (one, other)))
    ]  # fmt: skip
    step, one, other = it.rng.choice(pairs)
    first, second = step.input_map[one], step.input_map[other]
    step.input_map[one], step.input_map[other] = second, first
    return f"{step.model_name}: {one} and {other} swapped", (step.model_name, first, second)


def misspelt_tensor(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    name, _, _, step, key = it.edge()
    step.input_map[key] = f"{name}s"
    return f"{step.model_name}.{key} takes {name}s instead of {name}", (f"'{name}s'",)


def misspelt_input(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    name, _, _, step, key = it.edge()
    del step.input_map[key]
    step.input_map[f"{key}_"] = name
    return f"{step.model_name} has no input {key}_", (step.model_name, f"'{key}_'")


def misspelt_output(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    name, step, key, _, _ = it.edge()
    del step.output_map[key]
    step.output_map[f"{key}_"] = name
    return f"{step.model_name} has no output {key}_", (step.model_name, f"'{key}_'")


def other_type(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    name, _, _, step, key = it.edge()
    tensor = it.tensor(step.model_name, "input", key)
    values = pbtxt.schema().DataType
    tensor.data_type = it.rng.choice([values.Value(one) for one in _TYPES if values.Value(one) != tensor.data_type])
    return f"{step.model_name}.{key} is {values.Name(tensor.data_type)}", (f"'{name}'", step.model_name)


def other_dims(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    name, maker, made, step, key = it.edge()
    tensor, source = it.tensor(step.model_name, "input", key), it.tensor(maker.model_name, "output", made)
    literal = [index for index, dim in enumerate(tensor.dims) if dim > 0 and dim in source.dims]
    if literal:
        tensor.dims[it.rng.choice(literal)] += 1
    else:
        tensor.dims.append(1)
    return f"{step.model_name}.{key} is {list(tensor.dims)}", (f"'{name}'", step.model_name)


def other_batching(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    """A model that batches no longer, or one that begins to: the batch axis is lost, or one too many."""
    _, maker, _, step, _ = it.edge()
    model = it.rng.choice((maker.model_name, step.model_name))
    config = it.configs[model]
    config.max_batch_size = 0 if config.max_batch_size else 32
    config.ClearField("dynamic_batching")
    return f"{model} has max_batch_size {config.max_batch_size}", (model,)


def too_large_batch(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    """The ensemble takes more than a model; one that takes single requests is made to batch first."""
    step = it.rng.choice(it.steps)
    if it.config.max_batch_size:
        it.configs[step.model_name].max_batch_size = 4
    else:
        it.config.max_batch_size = 128
    return f"ensemble of {it.config.max_batch_size}, {step.model_name}", (str(it.config.max_batch_size),)


def circle(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    name, maker, _, step, _ = it.edge()
    later = it.rng.choice(list(step.output_map.values()))
    key = it.rng.choice(list(maker.input_map))
    maker.input_map[key] = later
    return f"{maker.model_name}.{key} takes {later} of {step.model_name}, which takes {name}", (f"'{later}'",)


def missing_input(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    _, _, _, step, key = it.rng.choice([row for row in it.inner_edges() if len(row[3].input_map) > 1])
    del step.input_map[key]
    return f"{step.model_name}.{key} is given nothing", (step.model_name, f"'{key}'")


def missing_step(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    index = it.rng.randrange(1, len(it.steps))
    names = list(it.steps[index].output_map.values())
    model = it.steps[index].model_name
    del it.steps[index]
    return f"no step {model}", (f"'{names[0]}'",)


def unused_input(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    it.config.input.add(name="hint", data_type=pbtxt.schema().TYPE_FP32, dims=[1])
    return "an input that no step takes", ("'hint'",)


def unused_tensor(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    """A step takes a tensor no longer that only it took: what its maker makes leads nowhere."""
    takers = Counter(name for step in it.steps for name in step.input_map.values())
    name, _, _, step, key = it.rng.choice([row for row in it.inner_edges() if takers[row[0]] == 1])
    source = it.config.input[0].name
    step.input_map[key] = source
    return f"{step.model_name}.{key} takes {source}; nobody takes {name}", (f"'{name}'",)


def made_twice(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    first, last = it.steps[0], it.steps[len(it.steps) - 1]
    name = it.rng.choice(list(first.output_map.values()))
    key = it.rng.choice(list(last.output_map))
    last.output_map[key] = name
    return f"{last.model_name}.{key} makes {name} too", (f"'{name}'",)


def other_output(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    tensor = it.rng.choice(it.config.output)
    maker = next(step for step in it.steps if tensor.name in step.output_map.values())
    if it.rng.random() < 0.5:
        tensor.data_type = pbtxt.schema().TYPE_INT32
    else:
        tensor.dims.append(7)
    return f"the ensemble's own {tensor.name} is something else", (f"'{tensor.name}'", maker.model_name)


def absent_model(it: Pipeline) -> tuple[str, tuple[str, ...]]:
    step = it.rng.choice(it.steps)
    step.model_name += "_v2"
    return f"there is no {step.model_name}", (step.model_name,)


MUTATIONS: tuple[Mutation, ...] = (
    swapped_inputs, misspelt_tensor, misspelt_input, misspelt_output, other_type, other_dims, other_batching,
    too_large_batch, circle, missing_input, missing_step, unused_input, unused_tensor, made_twice, other_output,
    absent_model,
)  # fmt: skip


def _alike(one: Any, other: Any) -> bool:
    free = (list(one.dims), list(other.dims))
    return bool(one.data_type == other.data_type and len(free[0]) == len(free[1]))


def _light(model: ServedModel) -> ServedModel:
    """Return the model as the embedded server has it, without files: its code is the judge's."""
    return replace(embed(model, cpus=1), files=(), parameters={})


@lru_cache
def examples() -> dict[str, tuple[ServedModel, ...]]:
    return {name: chosen(MANIFEST, (name,), members=True)[1] for name in PIPELINES}


def broken(count: int, seed: int) -> list[Broken]:
    """Return `count` mutations, each kind about as often, all different."""
    rng = random.Random(seed)
    found: dict[tuple[str, str], Broken] = {}
    number = 0
    while len(found) < count:
        mutation, name = MUTATIONS[number % len(MUTATIONS)], PIPELINES[number // len(MUTATIONS) % len(PIPELINES)]
        number += 1
        pipeline = Pipeline(name, examples()[name], rng)
        what, words = mutation(pipeline)
        found.setdefault((name, what), Broken(mutation.__name__, name, what, words, pipeline.configs))
    return list(found.values())


def findings(tree: Tree) -> list[Finding]:
    with tempfile.TemporaryDirectory(prefix="repogen-check-") as folder:
        return check_repository(write_tree(Path(folder) / "repository", tree), target_of("embedded"))


def names_the_edge(case: Broken, found: Sequence[Finding]) -> bool:
    """Return whether the errors about the ensemble have every word that tells where it is broken."""
    said = " ".join(f"{one.message} {one.hint}" for one in found if one.severity == "error")
    return all(word in said for word in case.words)


def asked(name: str) -> Callable[[Client], object]:
    """Return what sends the pipeline a request of the kind that it takes, and one of two where it takes batches."""
    model = next(one for one in examples()[name] if one.name == name)
    requests = [pool(model, count=1, batch=size, seed=0)[0] for size in ((1, 2) if model.max_batch_size else (1,))]
    return lambda client: [client.infer(name, request) for request in requests]


@dataclass(frozen=True)
class Row:
    case: Broken
    found: tuple[Finding, ...]
    verdict: Verdict

    @property
    def missed(self) -> bool:
        return not any(one.severity == "error" for one in self.found)

    @property
    def named(self) -> bool:
        return names_the_edge(self.case, self.found)

    @property
    def disagrees(self) -> bool:
        return self.verdict.loaded


def run(cases: Sequence[Broken]) -> list[Row]:
    with Judge() as judge:
        sound = {
            name: judge.loads(Broken("", name, "", (), whole.configs).tree, ask=asked(name))
            for name, models in examples().items() if (whole := Pipeline(name, models, random.Random(0)))
        }  # fmt: skip
        for name, verdict in sound.items():
            assert verdict.loaded, f"{name} as it is: {verdict.reason}"
        rows = []
        for case in cases:
            verdict = judge.loads(case.tree, ask=asked(case.pipeline))
            rows.append(Row(case, tuple(findings(case.tree)), verdict))
            _show(rows[-1])
        return rows


def _show(row: Row) -> None:
    codes = ",".join(sorted({one.code for one in row.found if one.severity == "error"})) or "-"
    marks = f"{'named' if row.named else 'NOT NAMED'}  {'SERVER ANSWERS' if row.disagrees else 'server refuses'}"
    print(f"{row.case.pipeline:6}{row.case.kind:18}{codes:24}{marks}  {row.case.what}", flush=True)
    if row.missed or not row.named or row.disagrees:
        for one in row.found:
            print(f"    {one.code} {one.where} {one.message}")
        print(f"    server: {row.verdict.reason or 'answers'}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = run(broken(options.mutations, options.seed))
    counts = {
        "mutations": len(rows),
        "named": sum(row.named for row in rows),
        "missed": sum(row.missed for row in rows),
        "server_disagrees": sum(row.disagrees for row in rows),
    }
    print("  ".join(f"{key} {value}" for key, value in counts.items()))
    if options.json:
        options.json.write_text(json.dumps(counts, indent=1) + "\n")
    return 0 if counts["named"] == len(rows) and not counts["missed"] and not counts["server_disagrees"] else 1


if __name__ == "__main__":
    sys.exit(main())
