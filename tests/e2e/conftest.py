from fixtures import cli, job, serve, server, zygote
from object_store import bucket, s3
from peers import llm_annotator_python, ollama_classifier_python
from postgres_server import postgres

__all__ = [
    "bucket",
    "cli",
    "job",
    "llm_annotator_python",
    "ollama_classifier_python",
    "postgres",
    "s3",
    "serve",
    "server",
    "zygote",
]
