"""Fields are found where they stand."""

from hypothesis import given
from hypothesis import strategies as st

from repogen.check.positions import positions

TEXT = """\
# a comment with { marks: [ ] }
name: "a \\"quoted\\" { name"
input [
  {
    name: 'x' dims: [4,
      5]
  },
  { name: "y" dims: 7 dims: 8 }
]
dynamic_batching <
  preferred_batch_size: [
    4, 8
  ]
>
parameters { key: "k" value { string_value: "a"
  "b" } }
parameters: {
  key: "l" value: {
    string_value: "c" } }
max_batch_size: 3
"""


def test_each_field_has_its_line():
    lines = positions(TEXT)
    wanted = {
        "name": 2,
        "input": 3,
        "input[0]": 4,
        "input[0].name": 5,
        "input[0].dims": 5,
        "input[0].dims[1]": 6,
        "input[1].name": 8,
        "input[1].dims[1]": 8,
        "dynamic_batching.preferred_batch_size": 11,
        "dynamic_batching.preferred_batch_size[1]": 12,
        "parameters[0].value.string_value": 15,
        "parameters[1].key": 18,
        "parameters[1].value.string_value": 19,
        "max_batch_size": 20,
    }
    assert {field: lines.get(field) for field in wanted} == wanted


def test_a_name_inside_a_string_or_comment_is_no_field():
    assert "marks" not in positions(TEXT)
    assert list(positions('# name: 1\nx: "name: 2"\n')) == ["x", "x[0]"]


@given(st.text(alphabet="ab:{}<>[]\"' \n#,;1\\", max_size=60))
def test_any_text_ends(text):
    lines = positions(text)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
