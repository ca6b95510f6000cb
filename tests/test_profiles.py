"""Optimisation profiles from what the manifest says."""

import pytest

from repogen.errors import ManifestError
from repogen.model import DynamicBatching, InputHint, Instances, Profile, ServedModel, ServedTensor, ShapeRange
from repogen.profiles import profiles_of
from repogen.settings_schema import ProfileEntry


def where(*key):
    return ".".join(map(str, key))


def model(max_batch=8, inputs=None, **more):
    given = inputs or (ServedTensor("x", "TYPE_FP32", (3, -1), labels=("", "W")),)
    return ServedModel(
        name="m", backend="tensorrt", source="m.onnx", max_batch_size=max_batch, inputs=given,
        outputs=(), instances=(Instances("gpu", 1),), files=(), **{
            "dynamic_batching": None, "shapes": {"W": ShapeRange(32, 320, 1600)}, **more,
        },
    )  # fmt: skip


def entry(**said):
    return ProfileEntry.model_validate(said)


def test_one_profile_from_shapes_and_max_batch_size():
    (profile,) = profiles_of(model(), (), {}, where)
    assert profile == Profile({"x": ((1, 3, 32), (8, 3, 320), (8, 3, 1600))})
    assert profile.max_batch == 8


def test_the_largest_preferred_size_is_the_one_to_optimise_for():
    preferred = model(dynamic_batching=DynamicBatching(0, (2, 4)))
    (profile,) = profiles_of(preferred, (), {}, where)
    assert profile.shapes["x"][1] == (4, 3, 320)


def test_without_batching_there_is_no_batch_axis():
    (profile,) = profiles_of(model(0), (), {}, where)
    assert profile.shapes["x"] == ((3, 32), (3, 320), (3, 1600))


def test_an_input_that_is_one_number_a_sample_has_only_the_batch_axis():
    tensor = ServedTensor("x", "TYPE_FP32", (1,), labels=("",), reshape=())
    (profile,) = profiles_of(model(4, inputs=(tensor,)), (), {}, where)
    assert profile.shapes["x"] == ((1,), (4,), (4,))


def test_several_profiles_each_narrower_than_the_whole():
    said = (
        entry(batch={"min": 1, "opt": 1, "max": 1}),
        entry(batch={"min": 1, "opt": 8, "max": 8}, shapes={"W": {"min": 32, "opt": 64, "max": 64}}),
    )
    one, two = profiles_of(model(), said, {}, where)
    assert one.shapes["x"] == ((1, 3, 32), (1, 3, 320), (1, 3, 1600))
    assert two.shapes["x"] == ((1, 3, 32), (8, 3, 64), (8, 3, 64))


@pytest.mark.parametrize(
    ("said", "key", "message"),
    [
        ([{"batch": {"min": 2, "opt": 8, "max": 8}}], "profiles", "no profile takes batch 1: the smallest is 2"),
        ([{"batch": {"min": 1, "opt": 4, "max": 4}}], "profiles", "no profile takes max_batch_size 8"),
        ([{"batch": {"min": 1, "opt": 8, "max": 9}}], "profiles.0.batch.max", "9 is above max_batch_size 8"),
        ([{}, {"shapes": {"H": {"min": 1, "opt": 1, "max": 1}}}], "profiles.1.shapes.H", "has no free axis 'H'"),
        ([{"shapes": {"W": {"min": 16, "opt": 64, "max": 64}}}], "profiles.0.shapes.W", "16 to 64 is outside"),
    ],
)
def test_what_a_profile_cannot_say(said, key, message):
    with pytest.raises(ManifestError, match=message) as raised:
        profiles_of(model(), [entry(**one) for one in said], {}, where)
    assert raised.value.where == key


def test_a_batch_in_a_profile_of_a_model_that_does_not_batch_is_refused():
    with pytest.raises(ManifestError, match="not batched"):
        profiles_of(model(0), [entry(batch={"min": 1, "opt": 1, "max": 1})], {}, where)


SIZES = (
    ServedTensor("x", "TYPE_FP32", (1, 3, -1, -1), labels=("", "", "H", "W")),
    ServedTensor("size", "TYPE_INT64", (4,), labels=("",)),
)
SPANS = {"H": ShapeRange(8, 8, 8), "W": ShapeRange(8, 8, 8)}


def test_values_of_an_input_that_are_sizes_get_a_range():
    said = entry(values={"size": {"min": [1, 3, 8, 8], "opt": [1, 3, 16, 16], "max": [1, 3, 64, 64]}})
    (profile,) = profiles_of(model(0, SIZES, shapes=SPANS), [said], {"size": "Resize 'up'"}, where)
    assert profile.values == {"size": ((1, 3, 8, 8), (1, 3, 16, 16), (1, 3, 64, 64))}
    assert "size" not in profile.shapes


def test_values_that_are_known_are_a_range_of_one():
    known = model(0, SIZES, shapes=SPANS, hints={"size": InputHint((1, 3, 16, 16))})
    (profile,) = profiles_of(known, (), {"size": "Resize 'up'"}, where)
    assert profile.values == {"size": ((1, 3, 16, 16),) * 3}


def test_values_that_nobody_knows_are_asked_for():
    with pytest.raises(ManifestError, match=r"values of 'size' are sizes \(Resize 'up'\)"):
        profiles_of(model(0, SIZES, shapes=SPANS), (), {"size": "Resize 'up'"}, where)


def test_too_few_values_are_refused():
    said = entry(values={"size": {"min": [1], "opt": [1], "max": [1]}})
    with pytest.raises(ManifestError, match="'size' has 4 values, not 1"):
        profiles_of(model(0, SIZES, shapes=SPANS), [said], {"size": "Resize"}, where)


@pytest.mark.parametrize("bad", [{"min": 2, "opt": 1, "max": 3}, {"min": 1, "opt": 4, "max": 3}])
def test_sizes_that_do_not_ascend_are_refused(bad):
    with pytest.raises(ValueError, match="must ascend"):
        entry(batch=bad)
