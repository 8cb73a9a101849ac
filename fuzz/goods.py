"""One good file of every kind that a command reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch


def goods(folder: Path) -> dict[str, Path]:
    """One good file of every kind, by the capital name under which command lines ask for it."""
    made = {name: folder / file for name, file in {
        "NPY": "square.npy", "GAINS": "gains.npy", "CLOUD": "cloud.npy", "NPZ": "images.npz",
        "PICTURES": "pictures", "TEXT": "text.txt", "IDS": "ids.npy", "NETWORK": "network",
        "STACK": "stack.npz", "MODEL": "model", "IDS-MODEL": "bare-model", "RUN": "run",
        "STUDY": "study.toml",
    }.items()}  # fmt: skip
    rng = np.random.default_rng(0)
    np.save(made["NPY"], rng.normal(size=(2, 2)))
    np.save(made["GAINS"], np.array([1.0, 2.0]))
    np.save(made["CLOUD"], rng.normal(size=(4, 2)))
    np.save(made["IDS"], np.arange(200) % 17)
    _images(made["NPZ"], made["PICTURES"])
    made["TEXT"].write_text("the cat is on the mat and he was with it to be at this one " * 20)
    _networks(made)
    _models(made)
    made["STUDY"].write_text(
        f"models = [{json.dumps(str(made['MODEL']))}]\ntexts = [{json.dumps(str(made['TEXT']))}]\n"
        'lengths = "2:24:2"\nsamples = 4\nspans = [[0, "last"]]\n'
    )
    return made


def _images(npz: Path, pictures: Path) -> None:
    from PIL import Image

    pixels = np.random.default_rng(1).integers(0, 256, (20, 8, 8), dtype=np.uint8)
    labels = np.arange(20) % 2
    np.savez(npz, images=pixels, labels=labels)
    for place, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
        target = pictures / f"class{label}"
        target.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(target / f"{place}.png")


def _networks(made: dict[str, Path]) -> None:
    from attnscope.nets import Config, Transformer, save
    from attnscope.nets.invertible import Invertible

    config = Config.vit((1, 8, 8), 10, 4, dim=8, heads=2, head_dim=4, value_dim=4, hidden=8)
    save(Transformer(config), made["NETWORK"], {"data": "digits"})
    Invertible.random("softmax", depth=2, tokens=3, dim=2, radius=1.0).save(made["STACK"])


def _models(made: dict[str, Path]) -> None:
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    text = "[UNK] the cat is on mat and he was with it to be at this one"
    words = text.split()
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    network = transformers.GPT2Model(
        transformers.GPT2Config(
            n_embd=8, n_layer=2, n_head=2, n_positions=32, vocab_size=30, bos_token_id=0,
            eos_token_id=0,
        )
    )  # fmt: skip
    for name in ("MODEL", "IDS-MODEL"):
        network.save_pretrained(made[name])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]"
    ).save_pretrained(made["MODEL"])
