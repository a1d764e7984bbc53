from fixtures import cli, job, serve, server, zygote
from peers import llm_annotator_python, ollama_classifier_python

__all__ = ["cli", "job", "llm_annotator_python", "ollama_classifier_python", "serve", "server", "zygote"]
