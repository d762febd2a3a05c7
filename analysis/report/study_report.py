"""The report: one self-contained HTML page, the same as JSON, and a CSV for each table."""

import csv
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

import jinja2
from markupsafe import Markup, escape

from analysis.database import query_text
from analysis.figures import CONFIDENCE_95, FrequencyBasedRow
from analysis.report.advice import Advice, advise
from analysis.report.findings import findings
from analysis.report.plots import plots
from analysis.study import Study
from dedupd_core import __version__
from dedupd_core.units import format_duration, format_size

HTML = "report.html"
JSON = "report.json"
CSV_DIRECTORY = "csv"
TYPES_SHOWN_MAX = 20


def write_report(study: Study, directory: str) -> Advice | None:
    """Write all forms of the report into ``directory``. Returns no advice if no file was read."""
    os.makedirs(directory, exist_ok=True)
    advice = None if study.empty else advise(study)
    texts = {} if study.empty else findings(study)
    _write(os.path.join(directory, HTML), html(study, advice, texts))
    _write(
        os.path.join(directory, JSON), json.dumps(as_json(study, advice, texts), indent=2) + "\n"
    )
    _write_csv(study, os.path.join(directory, CSV_DIRECTORY))
    return advice


def as_json(study: Study, advice: Advice | None, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return all content of the report, by the names of queries and columns."""
    return {
        "version": __version__,
        **asdict(study),
        "findings": dict(texts),
        "advice": asdict(advice) if advice is not None else None,
    }


def html(study: Study, advice: Advice | None, texts: Mapping[str, str]) -> str:
    """Render the page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("analysis.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        size=format_size,
        duration=format_duration,
        percent=_percent,
        times=_times,
        count=lambda value: f"{value:,.0f}",
        shown=printable,
        code=_code,
    )
    return environment.get_template("report.html.j2").render(
        study=study,
        advice=advice,
        findings=texts,
        plots={name: Markup(svg) for name, svg in plots(study).items()},
        collected=datetime.fromtimestamp(study.collection.collected_s, UTC).strftime("%Y-%m-%d"),
        sources=_sources(study),
        types_shown_max=TYPES_SHOWN_MAX,
        most=study.savings(study.collection.default_chunking),
        gain=gain_bytes,
        confidence=CONFIDENCE_95,
        version=__version__,
    )


def gain_bytes(row: FrequencyBasedRow) -> float:
    """Return the gain minus metadata (seed 002, 2.3): the index has m·log2(m)/8, the list 20·n
    bytes."""
    distinct = max(row.distinct_chunks, 1)
    metadata = distinct * (distinct - 1).bit_length() / 8 + 20 * row.chunks
    return row.data_bytes - row.unique_bytes - metadata


def printable(text: str) -> str:
    """Make control characters and other unusual characters of names visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _code(text: str) -> Markup:
    """Format text; parts between backquotes are commands."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>%s</code>") % part if at % 2 else part for at, part in enumerate(parts)
    )


def _percent(value: float | None, decimals: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{decimals}f}%"


def _times(value: float | None) -> str:
    if value is None:
        return "–"
    return "∞" if math.isinf(value) else f"{value:.1f}×"


def _sources(study: Study) -> dict[str, str]:
    """Return the text of each query with a result, for readers who check the figures."""
    names = [name for name in _tables(study) if name != "figure2_chunk_size"]
    return {name: query_text(name) for name in [*names, "savings", "profile"]}


def _tables(study: Study) -> dict[str, list[Any]]:
    return {
        field.name: value
        for field in fields(study)
        if isinstance(value := getattr(study, field.name), list) and value
    }


def _write_csv(study: Study, directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    for name in os.listdir(directory):
        if name.endswith(".csv"):
            os.unlink(os.path.join(directory, name))
    for name, rows in _tables(study).items():
        with open(
            os.path.join(directory, f"{name}.csv"), "w", encoding="utf-8", newline=""
        ) as file:
            writer = csv.writer(file)
            columns = [field.name for field in fields(rows[0])]
            writer.writerow(columns)
            writer.writerows([getattr(row, column) for column in columns] for row in rows)


def _write(path: str, text: str) -> None:
    temporary = path + ".new"
    with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    os.replace(temporary, path)
