import io
from dataclasses import replace

from repogen.load.metrics import Result, Summary
from repogen.load.observe import Gauge
from repogen.load.served import Served
from repogen.load.verdict import Verdict
from repogen.report import as_csv, as_text

SUMMARY = Summary(
    requests=60,
    errors=3,
    seconds=2.0,
    rate=28.5,
    inferences=28.5,
    mean=12.0,
    p50=0.4567,
    p90=20.0,
    p95=25.0,
    p99=None,
    p999=None,
    p9999=None,
    max=1031.25,
    failures=(("[bold]out of memory", 3),),
    notes=("no P99: it needs 1,000 answered requests, there were 57",),
)
SERVED = Served(57, 3, 30, 57, 0.5, 0.1, 8.0, 0.2, 1.9, ((1, 3), (2, 27)), {"gpu_use": Gauge(0.5, 0.9)})
VERDICT = Verdict(valid=False, reasons=("3 of 60 requests failed",))
RESULT = Result("ocr", 4, "1", "closed", 0.0, SUMMARY, SERVED, VERDICT)


def test_text():
    stream = io.StringIO()
    as_text([RESULT], stream)
    text = stream.getvalue()
    assert "\x1b" not in text
    row = next(line for line in text.splitlines() if line.strip().startswith("ocr"))
    assert row.split() == [
        "ocr",
        "4",
        "users",
        "1",
        "28.5",
        "12.00",
        "0.457",
        "20.00",
        "25.00",
        "-",
        "-",
        "1031",
        "0.000",
        "60",
        "3",
        "void",
    ]
    assert "1x3  2x27" in text
    assert "ocr: void: 3 of 60 requests failed" in text
    assert "ocr: 3 failed: [bold]out of memory" in text
    assert "ocr: no P99: it needs 1,000" in text
    assert "ocr: GPU 50% busy (most 90%)" in text


def test_a_p99_with_its_interval():
    stream = io.StringIO()
    as_text([replace(RESULT, summary=replace(SUMMARY, p99=30.0, p99_low=28.0, p99_high=33.5))], stream)
    assert "30.00 [28.00..33.50]" in stream.getvalue()


def test_csv_has_a_place_for_every_figure():
    stream = io.StringIO()
    as_csv([RESULT, RESULT], stream)
    head, one, other = stream.getvalue().splitlines()
    assert one == other
    told = dict(zip(head.split(","), one.split(","), strict=True))
    assert (told["model"], told["p50"], told["p99"], told["max"]) == ("ocr", "0.4567", "", "1031.25")
    assert (told["server_batches"], told["valid"]) == ("1x3 2x27", "False")


def test_the_steps_of_a_pipeline():
    steps = {"tokenise": Served(57, 0, 57, 57, 0.5, 0.0, 1.5, 0.0, 1.0, ((1, 57),), total=2.0),
             "bert": Served(57, 0, 19, 57, 2.0, 0.0, 4.0, 0.0, 3.0, ((3, 19),), total=6.0)}  # fmt: skip
    whole = replace(RESULT, served=replace(SERVED, total=10.0, members=steps))
    stream = io.StringIO()
    as_text([whole], stream)
    text = stream.getvalue()
    assert "Steps of ocr, 4 users (mean ms a request, of 10.00)" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["tokenise", "0.500", "1.50", "20%", "57", "57", "1.00", "1x57"] in rows
    assert ["bert", "2.00", "4.00", "60%", "57", "19", "3.00", "3x19"] in rows
    assert ["between", "them", "2.00", "20%"] in rows
