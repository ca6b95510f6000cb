import io

from repogen.load.metrics import Result, Served, Summary
from repogen.report import as_text

SUMMARY = Summary(
    requests=60,
    errors=3,
    seconds=2.0,
    rate=28.5,
    mean=12.0,
    p50=0.4567,
    p90=20.0,
    p95=25.0,
    p99=None,
    max=31.25,
    failures=(("[bold]out of memory", 3),),
    notes=("no P99: it needs 100 answered requests, there were 57",),
)
SERVED = Served(57, 3, 30, 57, 1.5, 0.1, 8.0, 0.2, 1.9, ((1, 3), (2, 27)))
RESULT = Result("ocr", 4, 1, SUMMARY, SERVED)


def test_text():
    stream = io.StringIO()
    as_text([RESULT], stream)
    text = stream.getvalue()
    assert "\x1b" not in text
    row = next(line for line in text.splitlines() if line.strip().startswith("ocr"))
    assert row.split() == ["ocr", "4", "1", "28.5", "12.00", "0.457", "20.00", "25.00", "-", "31.25", "60", "3"]
    assert "1x3  2x27" in text
    assert "ocr: 3 failed: [bold]out of memory" in text
    assert "ocr: no P99: it needs 100" in text
