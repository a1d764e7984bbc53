"""A peer's user: has rows labelled by a vLLM server. Run by the peer's own Python, which need not have ours.

    peer_labels.py llm-annotator BASE_URL TABLE DIRECTORY
    peer_labels.py ollama-classifier BASE_URL TABLE DIRECTORY

TABLE has a JSON object a line, with `text`, `system` and `prompt`; the last two are what ollama-classifier
asks about the text, and are written there by `peer_labels.py prompts - TABLE -`. Prints the seconds that the
work took, without starting and importing, and the answers.
"""

import json
import sys
import time
from pathlib import Path

LABELS = ["positive", "negative", "neutral"]
AT_ONCE = 32
"""As many requests as the server takes at a time."""


def prompts(_url, table, _directory):
    """Add what ollama-classifier asks about each text."""
    from ollama_classifier.prompts import build_classification_prompt

    asked = [{**row, **_prompts(build_classification_prompt, row)} for row in _rows(table)]
    Path(table).write_text("".join(json.dumps(row) + "\n" for row in asked))


def _prompts(build, row):
    system, user = build(row["text"], LABELS)
    return {"system": system, "prompt": user}


def ollama_classifier(url, table, _directory):
    from ollama_classifier import LLMClassifier
    from ollama_classifier.backends import VLLMBackend

    generated = {}

    class Noting(VLLMBackend):
        """What the model has generated; the prediction is made of more than that."""

        def chat(self, messages, **options):
            response = super().chat(messages, **options)
            generated[messages[-1].content] = response.label
            return response

    rows = _rows(table)
    classifier = LLMClassifier(Noting(model="tiny", base_url=f"{url}/v1"), max_workers=AT_ONCE)
    began = time.perf_counter()
    results = classifier.batch_generate([row["text"] for row in rows], LABELS)
    seconds = time.perf_counter() - began
    answers = [generated[row["prompt"]] for row in rows]
    _tell(seconds, answers, predictions=[result.prediction for result in results])


def llm_annotator(url, table, directory):
    from datasets import Dataset
    from llm_annotator import Annotator, VLLMOnlineClient, VLLMOnlineRuntimeOptions

    rows = _rows(table)
    choice = {"structured_outputs": {"choice": LABELS}}
    options = VLLMOnlineRuntimeOptions(temperature=0.0, max_completion_tokens=32, extra_body=choice)
    client = VLLMOnlineClient(base_url=f"{url}/v1", max_workers=AT_ONCE, max_retries=0)
    began = time.perf_counter()
    with Annotator(client=client, batch_size=len(rows), num_proc=None) as annotator:
        annotated = annotator.annotate_dataset(
            output_dir=directory,
            dataset=Dataset.from_dict({"prompt": [row["prompt"] for row in rows]}),
            prompt_template="{prompt}",
            system_message=rows[0]["system"],
            options=options,
            upload_every_n_samples=None,
        )
    _tell(time.perf_counter() - began, annotated["response"])


def _rows(table):
    return [json.loads(line) for line in Path(table).read_text().splitlines()]


def _tell(seconds, answers, **more):
    sys.stdout.write(json.dumps({"seconds": round(seconds, 2), "answers": list(answers), **more}) + "\n")


if __name__ == "__main__":
    {"prompts": prompts, "llm-annotator": llm_annotator, "ollama-classifier": ollama_classifier}[sys.argv[1]](
        *sys.argv[2:]
    )
