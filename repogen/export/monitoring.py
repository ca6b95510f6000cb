"""What watches the servers: Prometheus with rules, Alertmanager, and Grafana with one dashboard. Pure."""

import json
from collections.abc import Sequence
from typing import Any

from repogen.export.monitoring_cases import cases
from repogen.export.monitoring_dashboard import dashboard
from repogen.export.monitoring_rules import groups
from repogen.export.settings import Settings
from repogen.export.sizing import gpus_needed, load_seconds
from repogen.export.templating import rendered
from repogen.export.watched import Timing, Watched, span
from repogen.model import ServedModel

_QUANTILES = {"p50": "0.5", "p90": "0.9", "p95": "0.95", "p99": "0.99", "p99.9": "0.999"}
_US = 1e6
_ALERT_FILE = "/run/secrets/alert-receiver"  # where docker-compose.yml puts it


def files(models: Sequence[ServedModel], settings: Settings, timing: Timing | None = None) -> dict[str, str]:
    """Return what `repogen export monitoring` writes, by path; `timing` is for tests that cannot wait for minutes."""
    what = watched(models, settings, timing or Timing(start=load_seconds(models, settings)))
    ruled = groups(what)
    values = {"what": what, "span": span, "groups": ruled, "cases": cases(what, ruled)}
    values |= {"alerts": settings.deploy.alerts, "alert_file": _ALERT_FILE}
    return {
        "prometheus/prometheus.yml": _text("prometheus.yml", settings, values),
        "prometheus/rules.yml": _text("rules.yml", settings, values),
        "prometheus/rules_test.yml": _text("rules_test.yml", settings, values),
        "alertmanager/alertmanager.yml": _text("alertmanager.yml", settings, values),
        "grafana/provisioning/datasources/prometheus.yml": _text("datasources.yml", settings, values),
        "grafana/provisioning/dashboards/dashboards.yml": _text("dashboards.yml", settings, values),
        f"grafana/dashboards/{settings.name}.json": json.dumps(dashboard(what), indent=2, ensure_ascii=False) + "\n",
    }


def watched(models: Sequence[ServedModel], settings: Settings, timing: Timing) -> Watched:
    """Return what there is to watch: names, objectives and limits, out of the manifest."""
    tuned = ((model.name, settings.manifest.models[model.name].tune) for model in models)
    return Watched(
        name=settings.name,
        models=tuple(model.name for model in models),
        objectives=tuple(
            (name, _QUANTILES[percentile], limit / _US)
            for name, tune in tuned
            if tune
            for percentile, limit in tune.slo.items()
        ),
        batched=tuple(
            (model.name, model.max_batch_size)
            for model in models
            if model.dynamic_batching and model.max_batch_size > 1
        ),
        bounded=tuple((model.name, size) for model in models if (size := _max_queue_size(model))),
        gpus=gpus_needed(models, settings) > 0,
        queue_target=settings.deploy.queue_target / _US,
        timing=timing,
    )


def _max_queue_size(model: ServedModel) -> int:
    policy = model.config.get("dynamic_batching", {}).get("default_queue_policy", {})
    return int(policy.get("max_queue_size", 0))


def _text(name: str, settings: Settings, values: dict[str, Any]) -> str:
    return rendered(f"monitoring/{name}.j2", settings, **values)
