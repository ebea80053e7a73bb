"""Does the bundle's tokenizer give the token ids of the checkpoint's?"""

from __future__ import annotations

import tokenizers

from h2o_export.checkpoints import Checkpoint
from h2o_runtime.bundles.manifest import TokenCheck
from h2o_runtime.text import Tokenizer

PROMPT = """\
The lighthouse at Cape Harrow was finished in 1871, after nine years of work and two changes of architect.
Its lamp burned colza oil at first, then paraffin, and from 1926 a generator in the keeper's shed fed an
electric arc. Ships reported the beam from nineteen nautical miles away on a clear night. The tower stands
on a ledge of granite that the sea covers at spring tide, so the stone for the lower courses was cut to
interlock on all six sides, dry-fitted on the beach, numbered and taken apart again. Of the original crew
of fourteen masons, eleven stayed until the last course was laid; their names are carved inside the door.

def moving_average(values, width):
    total = sum(values[:width])
    averages = [total / width]
    for left, right in zip(values, values[width:]):
        total += right - left
        averages.append(total / width)
    return averages

Question: how long did it take to build the lighthouse, and what fed its lamp before electricity came?
Answer:"""

TEXTS = (
    PROMPT,
    "We'LL see: they're 20241126, 1,024.50 and 7 of 12345678.",
    "x = 10\n\t\treturn a[0]->b != c;  // note\r\n\r\n",
    "\u6f22\u5b57\u3068\u304b\u306a\u3001\u4e2d\u6587 123 \ud55c\uad6d\uc5b4",
    "na\u00efve cafe\u0301 \u041f\u0440\u0438\u0432\u0435\u0442 \u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f600 \U0001f1e9\U0001f1ea!  \u00a92024 \u2026\u201cquoted\u201d \u2014",
)


def check_tokens(ours: Tokenizer, checkpoint: Checkpoint) -> TokenCheck:
    """With the published tokenizer.json, or, where there is none, whether the prompt comes back."""
    published = checkpoint.tokenizer_file
    if published is None:
        returned = ours.decode(ours.encode(PROMPT, add_special_tokens=False))
        return TokenCheck(texts=1, wrong=int(returned != PROMPT))
    theirs = tokenizers.Tokenizer.from_file(str(published))
    theirs.no_truncation()
    theirs.no_padding()
    wrong = sum(
        ours.encode(text, add_special_tokens=False) != theirs.encode(text, add_special_tokens=False).ids
        for text in TEXTS
    )
    return TokenCheck(texts=len(TEXTS), wrong=wrong, reference=published.name)
