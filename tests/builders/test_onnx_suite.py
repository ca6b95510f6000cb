"""Real builds on a machine without a GPU: models of ONNX's own suite and the example models, by TensorRT-RTX."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from repogen.files import model_file
from repogen.model import Build, BuilderOptions
from repogen.preflight import preflight
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("tensorrt_rtx_bindings") is None,
        reason="tensorrt-rtx is not installed (pip install 'repogen[tensorrt]')",
    ),
]
TAKEN = [
    "abs",
    "argmax_no_keepdims_random",
    "argmax_negative_axis_keepdims_random_select_last_index",
    "argmin_default_axis_random_select_last_index",
    "attention_4d_fp16_expanded",
    "attention_4d_gqa_causal_expanded",
    "attention_4d_attn_mask_bool_expanded",
    "attention_4d_diff_heads_with_past_and_present_expanded",
    "attention_4d_with_qk_matmul_bias_expanded",
    "attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal_expanded",
    "attention_3d_diff_heads_sizes_scaled_expanded",
    "attention_3d_softcap_expanded",
    "attention_3d_with_past_and_present_qk_matmul_bias_expanded",
    "attention_4d_padded_kv_bf16_expanded",
    "attention_4d_gqa_causal_nonpad_decode_fp16_expanded",
    "attention_24_fullymasked_qk_matmul_output_mode3_zero_expanded",
    "attention_local_window_rank1_boolean_mask_expanded",
    "attention_local_window_gqa_rank4_mask_expanded",
    "averagepool_2d_ceil_last_window_starts_on_pad",
    "bernoulli_double_expanded",
    "castlike_FLOAT16_to_DOUBLE",
    "clip",
    "clip_default_inbounds",
    "concat_3d_axis_negative_2",
    "convtranspose",
    "cosh",
    "einsum_inner_prod",
    "eyelike_with_dtype",
    "flexattention_scaled_expanded_ver26",
    "flexattention_causal_mask_expanded_ver26",
    "gathernd_example_int32",
    "gemm_default_single_elem_vector_bias",
    "gridsample_nearest",
    "group_normalization_epsilon",
    "hardsigmoid_default_expanded_ver18",
    "layer_normalization_4d_axis0_expanded_ver18",
    "layer_normalization_4d_axis_negative_2_expanded",
    "layer_normalization_3d_axis_negative_3_epsilon_expanded_ver18",
    "leakyrelu_example_expanded",
    "less_equal_expanded",
    "less_equal_bcast_expanded",
    "linear_attention_gated_delta_gqa_expanded",
    "linear_attention_linear_t1_no_past_expanded",
    "logsoftmax_axis_1_expanded_ver18",
    "l2normalization_axis_1",
    "lrn_default",
    "max_float64",
    "maxpool_2d_ceil",
    "min_float64",
    "not_3d",
    "reduce_min_default_axes_keepdims_example",
    "rms_normalization_4d_axis_negative_2",
    "rms_normalization_2d_axis_negative_1",
    "simple_rnn_defaults",
    "rotary_embedding_interleaved_expanded",
    "scan9_multi_state",
    "shape_start_negative_1",
    "sin_example",
    "softmax_example",
    "softmax_axis_2_expanded_ver18",
    "spacetodepth_expanded",
    "split_equal_parts_1d_opset18",
    "tan",
    "thresholdedrelu_example_expanded_ver18",
    "transpose_default",
    "triu_one_row",
    "xor2d",
]
REFUSED = {
    "bitshift_left_int64": "BitShift",
    "cast_FLOAT_to_FLOAT8E4M3FNUZ": "Cast",
    "cast_FLOAT_to_UINT2": "Cast",
    "cast_FLOAT_to_UINT4": "Cast",
    "causal_conv_with_state_short_input_no_past_state": "CausalConvWithState",
    "causal_conv_with_state_silu": "CausalConvWithState",
    "center_crop_pad_crop": "CenterCropPad",
    "compress_1": "Compress",
    "dequantizelinear_axis": "DequantizeLinear",
    "det_nd": "Det",
    "image_decoder_decode_png_rgb": "ImageDecoder",
    "layer_normalization_2d_axis_negative_2": "LayerNormalization",
    "matmulinteger": "MatMulInteger",
    "melweightmatrix": "MelWeightMatrix",
    "nllloss_NCd1_weight": "NegativeLogLikelihoodLoss",
    "nllloss_NCd1d2_reduction_sum": "NegativeLogLikelihoodLoss",
    "nllloss_NCd1d2d3_sum_weight_high_ii": "NegativeLogLikelihoodLoss",
    "optional_has_element_empty_no_input_name_tensor_input": "OptionalHasElement",
    "qlinearmatmul_2D_int8_float16": "QLinearMatMul",
    "quantizelinear_blocked_symmetric": "QuantizeLinear",
    "reduce_l1_do_not_keepdims_random_expanded": "ReduceSum",
    "reduce_l1_empty_set_expanded": "ReduceSum",
    "reduce_l2_negative_axes_keep_dims_example_expanded": "ReduceSum",
    "reduce_log_sum_asc_axes_expanded": "ReduceSum",
    "reduce_log_sum_exp_keepdims_random_expanded": "ReduceSum",
    "reduce_max_empty_set": "ReduceMax",
    "reduce_prod_empty_set": "ReduceProd",
    "reduce_sum_square_do_not_keepdims_example_expanded": "ReduceSum",
    "reduce_sum_square_negative_axes_keepdims_random_expanded": "ReduceSum",
    "resize_downsample_scales_cubic": "Resize",
    "resize_downsample_sizes_linear_antialias": "Resize",
    "resize_upsample_scales_linear_half_pixel_symmetric": "Resize",
    "scatternd_max": "ScatterND",
    "sce_NCd1d2d3_none_no_weight_negative_ii_log_prob_expanded": "NegativeLogLikelihoodLoss",
    "sce_NCd1d2d3d4d5_mean_weight_expanded": "NegativeLogLikelihoodLoss",
    "sce_mean_weight_expanded": "NegativeLogLikelihoodLoss",
    "sce_mean_weight_ii_3d_log_prob_expanded": "NegativeLogLikelihoodLoss",
    "sce_none_weights_log_prob_expanded": "NegativeLogLikelihoodLoss",
    "squeeze": "Squeeze",
    "training_dropout_mask": "Dropout",
    "unique_sorted_with_axis_3d": "Unique",
}
"""By the operator that TensorRT-RTX 1.7.1 refuses."""
ASKS_FOR_VALUES = {
    "blackmanwindow": "x",
    "cumsum_2d_axis_0": "axis",
    "edge_pad": "pads",
    "hannwindow_symmetric": "x",
    "reshape_negative_extended_dims": "shape",
}
"""By the input whose values are sizes, and of which nobody gave a range."""


@cache
def suite():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite divides by zero on purpose
        from onnx.backend.test.case.node import collect_testcases

        return {case.name.removeprefix("test_"): case.model for case in collect_testcases(None)}


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """What the pre-flight says of each model, two at a time."""
    import onnx

    folder = tmp_path_factory.mktemp("suite")

    def one(name):
        path = folder / f"{name}.onnx"
        onnx.save(suite()[name], path)
        return name, preflight(Build((model_file("model.onnx", path),), (), BuilderOptions(), "tensorrt_rtx", "", ""))

    suite()
    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(one, [*TAKEN, *REFUSED, *ASKS_FOR_VALUES]))


def test_sixty_models_and_more_are_parsed_and_built(tried):
    assert len(TAKEN) >= 60
    assert {name: tried[name].problems for name in TAKEN if not tried[name].passed} == {}


def test_what_is_refused_is_named_by_its_operator(tried):
    found = {name: {problem.operator for problem in tried[name].problems} for name in REFUSED}
    assert {name: said for name, said in found.items() if REFUSED[name] not in said} == {}


def test_an_input_whose_values_are_sizes_is_asked_for(tried):
    assert {name: tried[name].missing_profiles for name in ASKS_FOR_VALUES} == {
        name: (said,) for name, said in ASKS_FOR_VALUES.items()
    }


@pytest.mark.models
@pytest.mark.parametrize("name", ["text_cls", "text_det", "text_rec", "magika"])
def test_the_example_models_are_built(name, invoke):
    path = ROOT / "examples" / "models" / f"{name}.onnx"
    assert "TensorRT: parsed and built in" in invoke("inspect", "--tensorrt", path).stdout


@pytest.mark.models
def test_the_one_that_tensorrt_refuses_says_why(invoke):
    said = invoke("inspect", "--tensorrt", ROOT / "examples" / "models" / "silero_vad.onnx", code=1).stdout
    assert "TensorRT cannot take" in said
