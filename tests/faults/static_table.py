"""A static embedding table made on the spot: a real engine for daemons in tests, without weights of anybody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

TOPICS = {
    "drink": ["coffee", "tea", "espresso", "beverage", "brew"],
    "money": ["market", "stocks", "shares", "invest", "nvda"],
    "sick": ["doctor", "dentist", "hospital", "clinic", "nurse"],
}


def make(folder: Path, dimension: int = 64) -> Path:
    """Words of one topic lie together. As model2vec writes it."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    vocabulary, rows = {"[UNK]": 0}, [np.zeros(dimension)]
    for words in TOPICS.values():
        centre = random.standard_normal(dimension)
        for word in words:
            vocabulary[word] = len(rows)
            rows.append(centre + 0.3 * random.standard_normal(dimension))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    save_file({"embeddings": np.array(rows, np.float32)}, folder / "model.safetensors")
    return folder
