"""The command lines that compose and Kubernetes both run: Triton's flags, and Locust's."""

from collections.abc import Sequence

LOCUSTFILE = "/loadtests/locustfile.py"
"""Where the tools' image has it."""

RESTRICTED = ("model-repository", "shared-memory", "statistics", "trace", "logging")
"""What only who knows the key may ask: they load code, map memory, write files."""

KEY_NAME = "admin-key"


_BOUNDED_SINCE = "26.08"
"""The first release that is known to have --grpc-max-response-pool-size; 24.10 does not start with it."""


def triton_flags(repository: str, release: str, *, exit_on_error: bool, admin_key: str = "") -> list[str]:
    """Return Triton's flags. `admin_key` is a reference to a secret, such as $(NAME), which restricts control."""
    flags = [
        f"--model-repository={repository}",
        "--model-control-mode=explicit",  # models change only when asked over gRPC
        "--load-model=*",  # and a restart serves them all again; explicit alone starts with none
        "--disable-auto-complete-config",  # repogen's configs are complete
        "--strict-readiness=true",
        f"--exit-on-error={str(exit_on_error).lower()}",
        "--exit-timeout-secs=30",
        "--metrics-config=summary_latencies=true",  # quantiles beside the sums
    ]
    if release >= _BOUNDED_SINCE:
        flags.append("--grpc-max-response-pool-size=64")
    if admin_key:
        what = ",".join(RESTRICTED)
        flags.append(f"--grpc-restricted-protocol={what}:{KEY_NAME}={admin_key}")
        flags.append(f"--http-restricted-api={what}:{KEY_NAME}={admin_key}")
    return flags


def locust_master(model: str, host: str, *, options: Sequence[str] = ()) -> list[str]:
    """Return the command of Locust's master: its page starts and ends tests, its workers do the asking."""
    return ["locust", f"--locustfile={LOCUSTFILE}", "--master", f"--host={host}", f"--model={model}", *options]


def locust_worker(master: str) -> list[str]:
    """Return the command of a worker, which takes everything else from its master."""
    return ["locust", f"--locustfile={LOCUSTFILE}", "--worker", f"--master-host={master}"]
