import pytest

from dispatcher.model import Telemetry
from dispatcher.vllm.telemetry import read_telemetry

TWO_ENGINES = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a model, with {braces} and \\"quotes\\""} 3.0
vllm:num_requests_running{engine="1",model_name="a model, with {braces} and \\"quotes\\""} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 5.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 1.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.76e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 1e+06 1760000000000
vllm:prompt_tokens_total{engine="0",model_name="m"} 2.5e6
vllm:prompt_tokens_cached_total{engine="0",model_name="m"} 77.0
vllm:cache_config_info{block_size="16",engine="0",kv_cache_max_concurrency="25.5",num_gpu_blocks="9"} 1.0
vllm:cache_config_info{block_size="16",engine="1",kv_cache_max_concurrency="24.5",num_gpu_blocks="9"} 1.0
process_start_time_seconds 1.7600000001e+09
"""


def test_figures_are_summed_over_engines_and_usage_is_averaged():
    assert read_telemetry(TWO_ENGINES) == Telemetry(
        running=7,
        waiting=5,
        kv_usage=0.5,
        preemptions_total=1,
        generation_tokens_total=1e6,
        prompt_tokens_total=2.5e6,
        started_at=1760000000.1,
        kv_max_concurrency=50,
    )


@pytest.mark.parametrize("page", ["", "nothing of use 1", 'python_info{version="3"} 1.0\n', "\0\0\0"])
def test_what_is_absent_is_unknown_and_not_zero(page):
    assert read_telemetry(page) == Telemetry()


def test_the_old_name_of_the_cache_s_usage_serves_where_the_new_one_is_missing():
    assert read_telemetry('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n').kv_usage == 0.5


def test_a_version_with_both_names_is_not_counted_twice():
    both = 'vllm:gpu_cache_usage_perc{m="m"} 0.5\nvllm:kv_cache_usage_perc{m="m"} 0.4\n'
    assert read_telemetry(both).kv_usage == 0.4


@pytest.mark.parametrize("value", ["NaN", "+Inf", "nonsense"])
def test_a_value_that_is_no_number_is_unknown(value):
    assert read_telemetry(f"vllm:num_requests_running {value}\n").running is None


@pytest.mark.parametrize("label", ['kv_cache_max_concurrency="None",', ""])
def test_a_cache_of_unknown_size_is_unknown(label):
    assert read_telemetry(f'vllm:cache_config_info{{{label}engine="0"}} 1.0\n').kv_max_concurrency is None


def test_lines_may_end_as_on_windows():
    assert read_telemetry("vllm:num_requests_running 2.0\r\nprocess_start_time_seconds 5\r\n").running == 2
