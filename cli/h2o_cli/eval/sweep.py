"""A report's run: every open job, and the page of the results so far."""

from __future__ import annotations

import logging
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from h2o_cli.eval.announce import announce_time
from h2o_cli.eval.chat_frame import ChatFrame
from h2o_cli.eval.contestants import Contestant
from h2o_cli.eval.folder import RunFolder
from h2o_cli.eval.page import Page, render
from h2o_cli.eval.plan import Extent, Job, Measurer
from h2o_cli.eval.readings import Reading
from h2o_cli.eval.sanity import Sanity
from h2o_cli.eval.texts import Document
from h2o_cli.eval.token_view import seen_by, token_texts
from h2o_cli.progress import stages
from h2o_runtime import Generator
from h2o_runtime.bundles.manifest import Manifest
from h2o_runtime.text import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sweep:
    """Everything that a report covers."""

    bundle: Path
    manifest: Manifest
    contestants: tuple[Contestant, ...]
    documents: tuple[Document, ...]
    extent: Extent
    frame: ChatFrame

    def identity(self) -> dict[str, Any]:
        """What rows of one run have in common; contestants may change when it continues."""
        return {
            "model": self.bundle.resolve().name,
            "checkpoint": self.manifest.checkpoint.sha256,
            "precision": self.manifest.model.dtype,
            "texts": {document.name: document.sha256 for document in self.documents},
            "extent": asdict(self.extent),
            "chat_frame": asdict(self.frame),
        }

    def run(self, generator: Generator, tokenizer: Tokenizer, folder: RunFolder) -> tuple[Sanity, bool]:
        """Do what is not done yet, and whether it was stopped before the end.

        Rows are kept as they are made.
        """
        shown = self.documents[0]

        def seen(contestant: Contestant, document: Document, reading: Reading) -> None:
            if document is shown:
                folder.tokens.setdefault("tokens", token_texts(tokenizer, document.ids[: self.extent.length]))
                folder.tokens.setdefault("seen", {})[contestant.name] = seen_by(reading, generator)

        measurer = Measurer(
            generator, tokenizer, self.documents, self.contestants, self.extent, self.frame, seen
        )
        jobs = measurer.jobs(folder.done)
        announce_time(jobs, measurer)
        width = max((len(job.title) for job in jobs), default=8)
        with stages("reading", len(jobs) + 1, width, lines=True) as stage:
            stage("sanity")
            sanity = measurer.sanity()
            try:
                for job in jobs:
                    stage(job.title)
                    self._do(job, folder)
            except KeyboardInterrupt:
                return sanity, True
        return sanity, False

    def page(self, sanity: Sanity, folder: RunFolder) -> str:
        """The results so far, as one HTML file."""
        return render(
            Page(
                self.bundle.resolve().name,
                shlex.join(["h2o-eval", *sys.argv[1:]]),
                self.extent,
                self.documents,
                sanity,
                tuple(folder.values),
                folder.tokens,
            )
        )

    def _do(self, job: Job, folder: RunFolder) -> None:
        values = job.run()
        folder.keep_tokens()
        folder.add(values)
