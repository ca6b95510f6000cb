"""What NVIDIA's ONNX parser says of the nodes that it refuses."""

from typing import Any


def parser_errors(parser: Any) -> list[dict[str, Any]]:
    rows = []
    for index in range(parser.num_errors):
        error = parser.get_error(index)
        name = error.node_name() if hasattr(error, "node_name") else ""
        operator = error.node_operator() if hasattr(error, "node_operator") else ""
        message = error.desc()
        if message in ("", "false"):  # the parser's way to say that it has nothing for an operator
            message = "this parser has no such operator"
        rows.append({"node": name, "operator": operator, "message": message, "code": str(error.code())})
    return rows
