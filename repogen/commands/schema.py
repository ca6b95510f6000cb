"""`repogen schema`: the manifest's JSON schema."""

import json

from repogen.console import Console


def schema(*, console: Console) -> int:
    from repogen.manifest import ManifestSchema

    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **ManifestSchema.model_json_schema()}
    if console.as_json:
        console.document(document)
    else:
        console.say(json.dumps(document, indent=2))
    return 0
