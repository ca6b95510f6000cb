import csv
import io
import json
import re
from dataclasses import replace

import pytest

from repogen.errors import Refused
from repogen.tune.explain import paragraph, refuse_unreachable, verdict
from repogen.tune.report import as_csv, as_html, document
from repogen.tune.setting import Setting
from repogen.tune.trial import Measured
from tests.tune.test_apply import CURRENT, tuned


@pytest.fixture(scope="module")
def found():
    return tuned(Setting(16, 1, 500))


def test_the_csv_has_model_analyzers_columns(found):
    rows = list(csv.DictReader(io.StringIO(as_csv([found]))))
    assert list(rows[0])[:9] == [
        "model_name", "batch_size", "request_rate", "model_config_path", "instance_group", "max_batch_size",
        "satisfies_constraints", "perf_throughput", "perf_latency_p99",
    ]  # fmt: skip
    assert (rows[0]["perf_latency_p99"], rows[0]["satisfies_constraints"], rows[0]["instance_group"]) == (
        "9.3",
        "Yes",
        "1:CPU",
    )
    assert rows[0]["queue_delay_us"] == "500"


def test_the_document_is_json_with_every_trial(found):
    told = json.loads(json.dumps(document(found)))
    assert [trial["role"] for trial in told["trials"]] == ["candidate", "current"]
    assert told["measurements"] == 4
    assert told["choice"]["words"] == "delay 500us, 1 instance, batches up to 16"


def test_the_page_stands_alone_and_shows_what_was_asked_for(found):
    page = as_html([found])
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "<script" not in page
    for words in (
        "Predicted and measured",
        "Pareto front",
        "Latency over the rate",
        "Predicted P99 (ms)",
        "Batches of",
        "9.00 to 9.70",
    ):
        assert words in page


def test_the_words_say_what_changed_and_what_it_buys(found):
    text = paragraph(found)
    assert "queue delay 5ms to 500us" in text
    assert re.search(r"its P99 is -2[23]% beside what was served \(12 ms \[11.80, 12.30\]\)", text)
    assert "one instance more would give P99" in text
    assert "predictions were off by" in text


def test_an_objective_out_of_reach_names_the_best_and_the_limit(found):
    missed = tuned(Setting(16, 1, 500), held=False)
    assert verdict(missed) == (
        "no setting holds P99 20 ms at 900/s; the best is delay 500us, 1 instance, batches up to 16 "
        "with P99 9.3 ms [9.00, 9.70] at 900/s; the limit is about 700/s"
    )
    with pytest.raises(Refused, match="no setting holds"):
        refuse_unreachable(missed)
    refuse_unreachable(found)


def test_nothing_valid_recommends_nothing(found):
    void = replace(found.answer.trials[0], measured=Measured(9, 0, 9, valid=False, reason="the sender was late"))
    nothing = replace(found, answer=replace(found.answer, trials=(void,), choice=None, held=False))
    assert verdict(nothing) == "no run was valid, so nothing is recommended: the sender was late"
    assert "void" in as_html([nothing])


def test_what_is_served_already_needs_no_change():
    assert "Nothing is to be changed" in paragraph(tuned(CURRENT))
