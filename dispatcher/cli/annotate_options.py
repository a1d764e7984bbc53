"""The flags of `dispatcher annotate` that are its own: their types and help, and what each stands for."""

from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Final

from typer import Argument, Option

Input = Annotated[
    str,
    Argument(
        help="A table (.jsonl .csv .tsv .parquet .arrow), a directory, a pattern, s3://..., hf://..., or -."
    ),
]
Output = Annotated[
    str | None,
    Option("-o", "--output", help="The table to write, by suffix; s3://..., or - for standard output."),
]
InputFormat = Annotated[
    str | None, Option(help="jsonl, csv, tsv, parquet or arrow. Default: as the name ends; of - jsonl.")
]
OutputFormat = Annotated[str | None, Option(help="As --input-format.")]
Prompt = Annotated[Path | None, Option(help="A Jinja2 template of the user's message.")]
System = Annotated[Path | None, Option(help="A Jinja2 template of the system message.")]
MessagesColumn = Annotated[str | None, Option(help="A column of ready conversations, in place of --prompt.")]
ImageColumns = Annotated[str | None, Option(help="Columns of images: URLs, paths or bytes. With commas.")]
Labels = Annotated[str | None, Option(help="The only answers there are. With commas.")]
Confidence = Annotated[
    bool | None, Option("--confidence", help="Add the probability of each label, in columns of their own.")
]
MaxCalls = Annotated[int | None, Option(help="Answers that a row's probabilities may take. Default: 8.")]
Schema = Annotated[Path | None, Option(help="A file with the JSON schema of the answers.")]
Prefix = Annotated[str | None, Option(help="What the new columns' names begin with. Default: answer.")]
MaxTokens = Annotated[int | None, Option(help="Tokens an answer may have.")]
Temperature = Annotated[float | None, Option(help="The sampling temperature.")]
TopP = Annotated[float | None, Option(help="The probability mass to sample from.")]
Seed = Annotated[int | None, Option(help="The sampling seed.")]
ExtraBody = Annotated[str | None, Option(help="Other members of each request's body, as a JSON object.")]
ValidateRetries = Annotated[
    int | None, Option(help="Times a row is asked again for a valid answer. Default: 3.")
]
DropInvalid = Annotated[bool | None, Option("--drop-invalid", help="Leave out rows without a valid answer.")]
KeepReasoning = Annotated[
    bool | None, Option("--keep-reasoning", help="Keep a model's thinking in a column of its own.")
]
IdColumn = Annotated[
    str | None, Option(help="A column that names each row once. Default: rows have numbers.")
]
Where = Annotated[list[str] | None, Option(help="A condition that rows must meet: 'stars >= 3'. Repeatable.")]
Limit = Annotated[int | None, Option(help="How many rows to take.")]
Columns = Annotated[str | None, Option(help="The input's columns to keep. With commas. Default: all.")]

Preview = Annotated[
    int | None, Option(min=1, help="Show so many rows' prompts and, with servers, answers; then stop.")
]

Verify = Annotated[
    bool | None, Option("--verify", help="Compare the finished table with its input, and send nothing.")
]

SETTINGS: Final = MappingProxyType(
    {
        "prompt": "annotate.prompt",
        "system": "annotate.system",
        "messages_column": "annotate.messages_column",
        "image_columns": "annotate.image_columns",
        "labels": "annotate.labels",
        "confidence": "annotate.confidence",
        "max_calls": "annotate.max_calls",
        "schema": "annotate.answer_schema",
        "prefix": "annotate.prefix",
        "max_tokens": "annotate.max_tokens",
        "temperature": "annotate.temperature",
        "top_p": "annotate.top_p",
        "seed": "annotate.seed",
        "extra_body": "annotate.extra_body",
        "validate_retries": "annotate.validate_retries",
        "drop_invalid": "annotate.drop_invalid",
        "keep_reasoning": "annotate.keep_reasoning",
        "id_column": "annotate.id_column",
        "where": "annotate.where",
        "limit": "annotate.limit",
        "columns": "annotate.columns",
        "input_format": "annotate.input_format",
        "output_format": "annotate.output_format",
    }
)
"""Each flag's setting, by its place in the tree."""
