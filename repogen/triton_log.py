"""Read tritonserver's log: which models failed and why, in one line each."""

import re

_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+\s+\d+ [\w.]+:\d+\]\s*")
_LOADED = re.compile(r'"successfully loaded \'(?P<model>[^\']+)\'')
_LOADING = re.compile(r'"loading: (?P<model>[^"]+):\d+"')
_POLL = re.compile(r"Poll failed for model directory '(?P<model>[^']+)': (?P<reason>.*)")
_LOAD = re.compile(r"failed to load (?:model )?'(?P<model>[^']+)'(?: version \d+)?: (?P<reason>.*)")
_NO_MODULE = re.compile(r"Failed to preinitialize Python stub: (?P<reason>.*)")
_PROTO = re.compile(r"Error parsing text-format inference\.ModelConfig: (?P<reason>.*)")
_UNHEALTHY = re.compile(r"Stub process '(?P<model>.+)_\d+_\d+' is not healthy")
_FRAME = re.compile(r"(?P<file>[^\\\s]+)\((?P<line>\d+)\): ")
_STATUS = re.compile(r"^(Internal|Invalid argument|Not found|Unavailable|Unsupported|Unknown)(: | - )")
# What a machine without an NVIDIA GPU always says.
_NOISE = re.compile(
    r"Cuda|CUDA|DCGM|NVML|failed to load all models|Poll failed|failed to load|Failed to create instance"
)


def reasons(log: str) -> list[str]:
    """Return why the server did not start: `model: reason` for each model that failed, else its errors."""
    found: dict[str, str] = {}
    syntax = ""
    for line in log.splitlines():
        if match := _PROTO.search(line):
            syntax = f"config.pbtxt:{match['reason']}"
        elif match := _POLL.search(line):
            found[match["model"]] = (syntax if "read text proto" in line else "") or _tidy(match["reason"])
            syntax = ""
        elif match := _LOAD.search(line):
            found.setdefault(match["model"], _tidy(match["reason"]))
        elif match := _NO_MODULE.search(line):
            found.setdefault("", _tidy(match["reason"]))
    if found:
        return [f"{model}: {reason}" if model else reason for model, reason in found.items()]
    errors = [_tidy(_PREFIX.sub("", line)) for line in log.splitlines() if _is_error(line)]
    return list(dict.fromkeys(errors))[-5:]


def loading(log: str) -> list[str]:
    """Return the models whose loading has begun and has not ended."""
    begun = [match["model"] for match in _LOADING.finditer(log)]
    ended = {match["model"] for match in _LOADED.finditer(log)} | {match["model"] for match in _LOAD.finditer(log)}
    return [model for model in dict.fromkeys(begun) if model not in ended]


def failed(log: str) -> bool:
    """Return whether a model has failed, so that the server will not become ready."""
    return any(pattern.search(log) for pattern in (_POLL, _LOAD, _NO_MODULE))


def port_taken(log: str) -> bool:
    """Return whether a port was taken by another process before the server could bind it."""
    return "already in use" in log


def _is_error(line: str) -> bool:
    said = line.startswith(("E", "F", "error", "cannot run")) or "error while loading" in line
    return said and not _NOISE.search(line)


def _tidy(reason: str) -> str:
    """Return a reason as one line: a Python traceback becomes its exception and the place that raised it."""
    text, _, trace = reason.strip().strip('"').strip().partition("\\n\\nAt:\\n")
    text = _STATUS.sub("", text).replace("\\n", " ").strip()
    if match := _UNHEALTHY.match(text):
        return f"the Python process of {match['model']} ended while it was loading"
    text = text.removeprefix("TritonModelException: ")
    # The innermost frame comes first; the user's own code is the place to look at.
    frames = (match for match in _FRAME.finditer(trace) if "site-packages" not in match["file"])
    place = next(frames, None)
    return f"{text} (at {place['file']}:{place['line']})" if place else text
