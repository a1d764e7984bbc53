"""A toy language model behind vLLM's wire: few tokens, and every probability can be enumerated.

Its next-token distribution is a hash of all tokens before, so two tokenisations of one text lead to different
ones. It masks as vLLM 0.32.0 does: the allowed tokens sum to 1, forbidden ones show -9999.
"""

import math
from collections import Counter
from random import Random

END = 0
HEAD, TAIL = "U:", "\nA:"


class ToyModel:
    """`merges`: texts or bytes that are one token each, besides all single bytes."""

    def __init__(self, merges=(), *, seed=0, spread=3.0, ends=1, strip=False, head=HEAD, end="<end>"):
        joined = [merge.encode() if isinstance(merge, str) else merge for merge in merges]
        parts = dict.fromkeys([*(bytes([byte]) for byte in range(256)), *joined])
        self.ends = tuple(range(ends))
        self.vocabulary = [*[b""] * ends, *parts]
        self.ids = {part: token for token, part in enumerate(self.vocabulary) if part}
        self.longest = max(map(len, self.ids))
        self.seed, self.spread = seed, spread
        self.strip = strip
        """Whether the chat template trims what an assistant said."""
        self._logits = {}
        self.head = head
        """How the template begins a turn where an answer follows; it asks with HEAD."""
        self.end = end
        """How an end is written when it is detokenised."""
        self.drops_blank = False
        """Whether a blank at the beginning of a text is lost when it is detokenised."""
        self.tells_ids = True
        """Whether it has `return_token_ids`."""
        self.posts = Counter()
        self.bodies = []

    # --- the model ---

    def tokens(self, text):
        """Greedy: the longest token that fits."""
        data, found = text.encode(), []
        while data:
            size = next(size for size in range(self.longest, 0, -1) if data[:size] in self.ids)
            found.append(self.ids[data[:size]])
            data = data[size:]
        return tuple(found)

    def data(self, ids):
        return b"".join(self.vocabulary[token] for token in ids)

    def text(self, ids):
        named = [self.end.encode() if token in self.ends else self.vocabulary[token] for token in ids]
        text = b"".join(named).decode(errors="replace")
        return text.removeprefix(" ") if self.drops_blank else text

    def logits(self, before):
        if before not in self._logits:
            random = Random(repr((self.seed, before)))
            self._logits[before] = [self.spread * random.uniform(-1, 1) for _ in self.vocabulary]
        return self._logits[before]

    def logprobs(self, before, allowed=None):
        """Of each token after these, in nats: of all, or of those allowed."""
        logits = self.logits(tuple(before))
        kept = range(len(logits)) if allowed is None else allowed
        total = math.log(math.fsum(math.exp(logits[token]) for token in kept))
        return {token: logits[token] - total for token in kept}

    def allowed(self, written, choices):
        """The tokens that keep the bytes written within some choice, and the end at its end."""
        found = {
            self.ids[rest[:size]]
            for choice in choices
            if choice.startswith(written)
            for rest in (choice[len(written) :],)
            for size in range(1, min(len(rest), self.longest) + 1)
            if rest[:size] in self.ids
        }
        return found | (set(self.ends) if written in choices else set())

    def sequence_logprob(self, before, ids):
        """Of just these tokens, in nats."""
        return math.fsum(self.logprobs((*before, *ids[:place]))[token] for place, token in enumerate(ids))

    def masked(self, before, labels):
        """Each label's probability under the mask: all paths of tokens, enumerated."""
        choices = [label.encode() for label in labels]
        found = dict.fromkeys(choices, 0.0)
        open_paths = [((), 1.0)]
        while open_paths:
            path, mass = open_paths.pop()
            written = self.data(path)
            for token, logprob in self.logprobs((*before, *path), self.allowed(written, choices)).items():
                if token in self.ends:
                    found[written] += mass * math.exp(logprob)
                else:
                    open_paths.append(((*path, token), mass * math.exp(logprob)))
        return {label: found[label.encode()] for label in labels}

    def prompt(self, messages, *, continued=False):
        """The chat template."""
        last = messages[-1]["content"] if continued else ""
        said = messages[:-1] if continued else messages
        head = self.head if continued else HEAD
        turns = "".join(f"{head}{message['content']}" for message in said)
        return turns + TAIL + (last.strip() if self.strip else last)

    # --- the wire ---

    async def post(self, path, body):
        self.posts[path] += 1
        self.bodies.append((path, body))
        match path:
            case "/tokenize":
                return {"tokens": list(self.tokens(self._rendered(body)))}
            case "/detokenize":
                return {"prompt": self.text(body["tokens"])}
            case "/v1/chat/completions":
                return self._chat(body)
            case "/v1/completions":
                return self._completions(body)
        raise AssertionError(path)

    @property
    def generations(self):
        """Posts that the model computes for."""
        return self.posts["/v1/chat/completions"] + self.posts["/v1/completions"]

    def _rendered(self, body):
        if "messages" in body:
            return self.prompt(body["messages"], continued=body.get("continue_final_message", False))
        return body["prompt"]

    def _chat(self, body):
        ids = self.tokens(self._rendered(body))
        if "prompt_logprobs" in body:
            told = list(ids) if self.tells_ids and body.get("return_token_ids") else None
            return {"choices": [], "prompt_logprobs": self._scored(ids), "prompt_token_ids": told}
        path, places = self._generated(ids, body, body["top_logprobs"])
        content = [
            {
                "token": f"token_id:{token}",
                "logprob": logprob,
                "top_logprobs": [{"token": f"token_id:{each}", "logprob": value} for each, value in top],
            }
            for token, logprob, top in places
        ]
        message = {"content": self.text([token for token in path if token not in self.ends])}
        return {"choices": [{"message": message, "logprobs": {"content": content}}]}

    def _completions(self, body):
        if body.get("echo"):
            scored = [self._scored(tuple(prompt)) for prompt in body["prompt"]]
            return {"choices": [{"index": index, "prompt_logprobs": one} for index, one in enumerate(scored)]}
        _, places = self._generated(tuple(body["prompt"]), body, body["logprobs"])
        lists = {
            "tokens": [f"token_id:{token}" for token, _, _ in places],
            "token_logprobs": [logprob for _, logprob, _ in places],
            "top_logprobs": [{f"token_id:{each}": value for each, value in top} for _, _, top in places],
        }
        return {"choices": [{"index": 0, "logprobs": lists}]}

    def _generated(self, before, body, listed_max):
        choices = [choice.encode() for choice in body["structured_outputs"]["choice"]]
        bias = {int(token): value for token, value in body.get("logit_bias", {}).items()}
        path, places = (), []
        while len(path) < body["max_tokens"] and not (path and path[-1] in self.ends):
            logprobs = self.logprobs((*before, *path), self.allowed(self.data(path), choices))
            chosen = max(logprobs, key=lambda token: logprobs[token] + bias.get(token, 0.0))
            shown = {**dict.fromkeys(range(len(self.vocabulary)), -9999.0), **logprobs}
            ranked = sorted(shown.items(), key=lambda item: item[1], reverse=True)
            places.append((chosen, logprobs[chosen], ranked[:listed_max]))
            path = (*path, chosen)
        return path, places

    def _scored(self, ids):
        return [
            {
                str(token): {
                    "logprob": self.logprobs(ids[:place])[token],
                    "decoded_token": self._shown(ids, place),
                }
            }
            if place
            else None
            for place, token in enumerate(ids)
        ]

    def _shown(self, ids, place):
        """A token's text as vLLM corrects it: a broken character is all its last token's."""
        before, after = self.text(ids[:place]), self.text(ids[: place + 1])
        return "" if after.endswith("\ufffd") else after[len(before.rstrip("\ufffd")) :]
