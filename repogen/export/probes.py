"""Shell that asks a server for each model: what Kubernetes runs in Triton's container. Pure."""

from collections.abc import Sequence

_ASK = 2  # seconds that one model may take to say whether it is ready
_URL = "http://127.0.0.1:8000/v2"


def ready(names: Sequence[str]) -> list[str]:
    """Return what succeeds when every model answers that it is ready; else it names the first that does not."""
    script = (
        f"for model in {' '.join(names)}; do "
        f'curl -fsS -m {_ASK} -o /dev/null "{_URL}/models/$model/ready" || {{ echo "$model is not ready"; exit 1; }}; '
        "done"
    )
    return ["sh", "-c", script]


def alive(names: Sequence[str]) -> list[str]:
    """Return what succeeds while the server lives and gives an answer for every model, be it no."""
    script = (
        f'curl -fsS -m {_ASK} -o /dev/null "{_URL}/health/live" || exit 1; '
        f"for model in {' '.join(names)}; do "
        f'curl -sS -m {_ASK} -o /dev/null "{_URL}/models/$model/ready" || {{ echo "$model: silence"; exit 1; }}; '
        "done"
    )
    return ["sh", "-c", script]


def seconds(names: Sequence[str]) -> int:
    """Return how long a probe may take."""
    return _ASK * (len(names) + 1)
