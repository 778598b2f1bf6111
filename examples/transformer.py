"""A transformer whose batches are dicts, as Hugging Face models take them.

`python examples/transformer.py [PICTURE]` trains three small transformers to tell whether a sequence of tokens has an
opening bracket for each closing one, from a stream of batches with padding, and asks them about longer sequences.
"""

import sys

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import basinet as bn

LENGTH = 12


def brackets(n: int, length: int, seed: int) -> dict[str, Tensor]:
    """Sequences of 1 = ( and 2 = ), padded with 0 to LENGTH; label 1 where all brackets match."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.zeros(n, LENGTH, dtype=torch.long)
    labels = torch.zeros(n, dtype=torch.long)
    for i in range(n):
        half = int(torch.randint(2, length // 2 + 1, (), generator=generator))
        row = [1, 2] * half
        row = [row[j] for j in torch.randperm(2 * half, generator=generator).tolist()]
        if i % 2:  # repair half of them: turn a closing bracket that comes too early into an opening one, and back
            depth = 0
            for j, token in enumerate(row):
                left = len(row) - j
                row[j] = 1 if depth == 0 else 2 if depth >= left else token
                depth += 1 if row[j] == 1 else -1
        depth, matched = 0, True
        for token in row:
            depth += 1 if token == 1 else -1
            matched &= depth >= 0
        tokens[i, : len(row)] = torch.tensor(row)
        labels[i] = int(matched and depth == 0)
    return {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": labels}


class Reader(nn.Module):
    """Two layers of attention over embedded tokens and places; classes from the mean over tokens."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(3, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.tokens(input_ids) + self.places(torch.arange(LENGTH, device=input_ids.device))
        x = self.layers(x, src_key_padding_mask=attention_mask == 0)
        weights = attention_mask.unsqueeze(-1).to(x.dtype)
        return self.head((x * weights).sum(1) / weights.sum(1))


examples = brackets(2000, length=8, seed=0)
batches = [{key: x[i : i + 100] for key, x in examples.items()} for i in range(0, 2000, 100)]
stream = bn.Data.stream(batches, n=2000, name="brackets")  # a DataLoader is taken in the same way

problem = bn.Problem(Reader, bn.likelihoods.Categorical(), bn.priors.Normal(scale=1.0))
ensemble = bn.fit(bn.MAP(epochs=12), problem, stream, members=3)

seen = {}
for name, length, seed in (("length up to 8", 8, 1), ("length up to 12", 12, 2)):
    test = brackets(400, length, seed)
    labels = test.pop("labels")
    predictive = ensemble.predict(test)
    scores = bn.score(predictive, labels)
    seen[name] = predictive.epistemic
    print(f"{name:16} nll {scores['nll']:.3f}  accuracy {scores['accuracy']:.3f}  ", end="")
    print(f"epistemic {float(predictive.epistemic.mean()):.3f} of {float(predictive.entropy.mean()):.3f} nats")

_, ax = plt.subplots(figsize=(5, 3))
ax.hist([x.numpy() for x in seen.values()], bins=20, density=True, label=list(seen), color=["#0072b2", "#d55e00"])
ax.set(xlabel="epistemic uncertainty [nats]", ylabel="density", yscale="log")
ax.legend(frameon=False, fontsize=8)
plt.tight_layout()
if sys.argv[1:]:
    plt.savefig(sys.argv[1], dpi=110)
