"""Results of load tests for people and for programs: text, one HTML page, CSV."""

from repogen.report.data import as_csv
from repogen.report.page import as_html
from repogen.report.text import as_text

__all__ = ["as_csv", "as_html", "as_text"]
