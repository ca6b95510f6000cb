"""How long does `repogen check` take for a repository of many models?

python benchmarks/check_scale.py --models 1000 --json scale.json
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from agreement.bases import BASES

from repogen.check.all_rules import RULES
from repogen.check.engine import check_repository
from repogen.check.examples import write_tree
from repogen.check.target import target_of

LIMIT = 10.0


def write(root: Path, models: int) -> int:
    """Write the base repositories again and again, each model under a name of its own; return how many."""
    written = 0
    for round_number in range(models):
        for base in BASES.values():
            names = {path.split("/")[0] for path in base if path.endswith("/config.pbtxt")}
            if written + len(names) > models:
                return written
            tree = {}
            for path, content in base.items():
                renamed = content
                for name in names if isinstance(content, str) else ():
                    renamed = renamed.replace(f'name: "{name}"', f'name: "{name}{round_number}_{written}"')
                folder, _, rest = path.partition("/")
                tree[f"{folder}{round_number}_{written}/{rest}"] = renamed
            write_tree(root, tree)
            written += len(names)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="repogen-scale-") as folder:
        models = write(Path(folder), options.models)
        begun, used = time.monotonic(), time.process_time()
        found = check_repository(Path(folder), target_of("embedded"))
        seconds, cpu = time.monotonic() - begun, time.process_time() - used
    errors = sum(finding.severity == "error" for finding in found)
    counts = {
        "models": models,
        "rules": len(RULES),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "errors": errors,
    }
    for name, value in (counts | {"cores": os.cpu_count()}).items():
        print(f"{name:<12} {value}")
    if options.json:
        options.json.write_text(json.dumps(counts, indent=2) + "\n", encoding="utf-8")
    return 1 if seconds > LIMIT or errors else 0


if __name__ == "__main__":
    sys.exit(main())
