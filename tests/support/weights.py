"""What a model's weights say of labels, computed with transformers alone: run in vLLM's environment.

    python weights.py MODEL < {"messages": [...], "labels": [[...], ...]}

Prints, for each list of labels, each label's log-probability with the end of the answer (`logprobs`) and its
share of the distribution under a mask that allows only labels, all paths of tokens enumerated (`masked`).
"""

import json
import math
import sys


def main(folder, asked):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    before = tokenizer.apply_chat_template(
        asked["messages"], tokenize=True, add_generation_prompt=True, return_dict=False
    )
    known = {}

    def logits(path):
        if path not in known:
            with torch.inference_mode():
                known[path] = model(torch.tensor([[*before, *path]])).logits[0, -1].double()
        return known[path]

    def own(label):
        path = (*tokenizer.encode(label, add_special_tokens=False), tokenizer.eos_token_id)
        return sum(
            float(torch.log_softmax(logits(path[:place]), -1)[token]) for place, token in enumerate(path)
        )

    words = vocabulary(tokenizer)
    return [
        {
            "logprobs": {label: own(label) for label in labels},
            "masked": masked(labels, words, tokenizer.eos_token_id, lambda path: logits(path).tolist()),
        }
        for labels in asked["labels"]
    ]


def masked(labels, words, end, logits):
    choices = [label.encode() for label in labels]
    found, open_paths = dict.fromkeys(choices, 0.0), [((), b"", 1.0)]
    while open_paths:
        path, written, mass = open_paths.pop()
        allowed = [
            token for token, data in words.items() if any(each.startswith(written + data) for each in choices)
        ]
        allowed += [end] if written in choices else []
        scores = logits(path)
        weights = {token: math.exp(scores[token]) for token in allowed}
        total = math.fsum(weights.values())
        for token, weight in weights.items():
            if token == end:
                found[written] += mass * weight / total
            else:
                open_paths.append(((*path, token), written + words[token], mass * weight / total))
    return {choice.decode(): mass for choice, mass in found.items()}


def vocabulary(tokenizer):
    """The bytes of each token: a byte-level vocabulary writes every byte as one printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable} | {
        chr(256 + place): byte for place, byte in enumerate(others)
    }
    special = set(tokenizer.all_special_ids)
    return {
        token: bytes(alphabet[character] for character in word)
        for word, token in tokenizer.get_vocab().items()
        if token not in special and set(word) <= alphabet.keys()
    }


if __name__ == "__main__":
    json.dump(main(sys.argv[1], json.load(sys.stdin)), sys.stdout)
