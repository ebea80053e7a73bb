"""The report as one self-contained HTML file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from h2o_cli.eval.pictures import plots
from h2o_cli.eval.plan import Extent
from h2o_cli.eval.sanity import Sanity
from h2o_cli.eval.screen import in_words, shown, verdict
from h2o_cli.eval.summary import summarize
from h2o_cli.eval.texts import Document
from h2o_cli.eval.values import Value


@dataclass(frozen=True)
class Page:
    """The content of a report. tokens: for `TokenView` in the page's script, empty if no text was read."""

    model: str
    command: str
    extent: Extent
    documents: tuple[Document, ...]
    sanity: Sanity
    values: tuple[Value, ...]
    tokens: dict[str, Any]


def render(page: Page) -> str:
    """Raises BackendError without matplotlib."""
    rows = summarize(page.values)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    folder = files("h2o_cli.eval")
    template = environment.from_string((folder / "page.html").read_text(encoding="utf-8"))
    return template.render(
        model=page.model,
        command=page.command,
        extent=asdict(page.extent),
        reading=in_words(page.extent, page.documents),
        documents=page.documents,
        verdict=verdict(page.sanity),
        sanity=page.sanity,
        figures=shown(rows),
        rows=rows,
        plots=[(title, meaning, Markup(svg)) for title, meaning, svg in plots(page.values, rows)],
        tokens=_script_json(page.tokens),
        script=Markup((folder / "page.js").read_text(encoding="utf-8")),
    )


def _script_json(value: Any) -> Markup:
    """JSON for a script element: nothing in it ends the element."""
    text = json.dumps(value, ensure_ascii=False)
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))
