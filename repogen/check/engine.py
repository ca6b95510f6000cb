"""Ask every rule about every model."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from repogen.check.deployment import Service, read_services
from repogen.check.findings import SEVERITIES, Finding
from repogen.check.rule import Problem, Rule
from repogen.check.subject import CONFIG, Model, Repository, Subject, read_repository
from repogen.check.target import Target


def check_repository(
    root: Path, target: Target, rules: Sequence[Rule] | None = None, deployments: Sequence[Path] | None = None
) -> list[Finding]:
    """Return what is wrong with the repository at `root` for `target`, model by model, the worst first.

    `deployments` are the files, or folders of files, by which it is served; by default those in the root itself.
    """
    from repogen.check.all_rules import RULES

    repository = read_repository(root)
    chosen = RULES if rules is None else rules
    found = list(_findings(repository, target, [rule for rule in chosen if rule.scope != "deployment"]))
    asked = [rule for rule in chosen if rule.scope == "deployment"]
    services = read_services([root] if deployments is None else deployments) if asked else []
    for rule in asked:
        found += _of_services(rule, services, repository, target)
    return sorted(set(found), key=lambda it: (it.model, SEVERITIES.index(it.severity), it.code, it.where, it.message))


def _findings(repository: Repository, target: Target, rules: Iterable[Rule]) -> Iterator[Finding]:
    for rule in rules:
        for model in _asked(repository, rule):
            subject = Subject(model, repository, target)
            for problem in rule.check(subject):
                yield _finding(rule, model, problem)


def _of_services(rule: Rule, services: Sequence[Service], repository: Repository, target: Target) -> Iterator[Finding]:
    for service in services:
        subject = Subject(Model("", repository.root), repository, target, service)
        for problem in rule.check(subject):
            where = f"{service.file}:{service.line_of(problem.field)}"
            severity = problem.severity or rule.severity
            yield Finding(rule.code, severity, where, service.name, problem.message, problem.hint)


def _asked(repository: Repository, rule: Rule) -> Iterable[Model]:
    if rule.scope == "root":
        return (Model("", repository.root),)
    if rule.scope == "entry":
        return repository.entries.values()
    if rule.scope == "model":
        return repository.models.values()
    return (model for model in repository.models.values() if model.config is not None)


def _finding(rule: Rule, model: Model, problem: Problem) -> Finding:
    line = problem.line
    if problem.file or model.text is None:
        path = "/".join(part for part in (model.name, problem.file) if part) or "."
    else:
        path = f"{model.name}/{CONFIG}"
        line = line or model.line_of(problem.field)
    where = f"{path}:{line}" if line else path
    return Finding(rule.code, problem.severity or rule.severity, where, model.name, problem.message, problem.hint)
