"""A peer's user: annotates numbered rows with `llm-annotator`, to which our URL is that of a vLLM server.

Run by the peer's own Python: `peer_annotates.py BASE_URL ROWS DIRECTORY`. Prints a line for each row.
"""

import json
import sys

from datasets import Dataset
from llm_annotator import Annotator, VLLMOnlineClient, VLLMOnlineRuntimeOptions


def main(base_url, rows, directory):
    client = VLLMOnlineClient(base_url=base_url, max_retries=0)  # what fails is to be seen, not asked again
    if not client.is_healthy():
        sys.exit(f"{base_url} is not healthy")
    with Annotator(client=client, batch_size=64, num_proc=None) as annotator:
        annotated = annotator.annotate_dataset(
            output_dir=directory,
            dataset=Dataset.from_dict({"review": [f"row-{number:05}" for number in range(int(rows))]}),
            prompt_template="Say what this review praises: {review}",
            system_message="Be brief.",
            keep_columns=["review"],
            options=VLLMOnlineRuntimeOptions(temperature=0.0, top_k=20, max_completion_tokens=1024),
            upload_every_n_samples=None,
        )
    for row in annotated:
        sys.stdout.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
