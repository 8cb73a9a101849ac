r"""How far a margin can fall: clean gradients, layer radii and the remainders of single layers,
telescoped.

With $X_l = F_l(X_{l-1})$, a margin $m$ of the output, $g_l = \nabla_{X_l} m$ at the clean input,
$D_l = X'_l - X_l$ and $R_l$ the Taylor remainder of layer $l$ alone, $m' - m = \langle g_k,
D_k\rangle + \sum_{l > k} \langle g_l, R_l\rangle$ exactly, for every cut $k$. So

$$ m - m' \le \|g_k\| e_k + \sum_{l > k} r_l,
   \qquad r_l \ge -\langle g_l, R_l\rangle, \quad e_k \ge \|D_k\|, $$

and the smallest of these over the cuts counts. The cut at the output is the layer-wise composition;
after the last non-linear layer it is contracted with the head; before the last block it is a margin
form; at the input it is the telescoped certificate NT4. Networks of tokens get NT4 in the sharper
form of `joint`.
"""

from __future__ import annotations

from typing import final, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnscope.certification.certificate import Method
from attnscope.certification.joint import Joint
from attnscope.certification.layers import Layer, within_reach
from attnscope.certification.tokens import in_tokens
from attnscope.norms import SLACK

ENTRIES = 2**21
"""Entries of the gradients of all margins behind one call of a remainder."""

NEAR = 0.6
"""Share of the remainders by token budgets that must fit below a margin for the remainders of
single layers to be tried.
"""

UNDECIDED, LAYERWISE, MARGIN, WHOLE = range(4)
METHODS: tuple[Method, ...] = get_args(Method)


@final
class Clean:
    """A clean forward pass of some images and the gradients of all their margins, ready to be
    certified at any radius.
    """

    def __init__(self, layers: list[Layer], images: Float[Tensor, "b ..."]) -> None:
        self.layers, self.tokens = layers, in_tokens([layer.bounds for layer in layers])
        self.values = [images.detach().requires_grad_()]
        with torch.enable_grad():
            for layer in layers:
                self.values.append(self._applied(layer, self.values[-1]))
        self.logits: Float[Tensor, "b classes"] = self.values[-1].detach()

    def _applied(self, layer: Layer, x: Tensor) -> Tensor:
        made = layer.apply(x)
        if made.shape[:1] != x.shape[:1]:
            raise ValueError(
                f"{layer.place} mixes images: it makes shape {tuple(made.shape)} of"
                f" {tuple(x.shape)}. Keep the first axis for the batch."
            )
        return made

    def aim(self, labels: Int[Tensor, " b"]) -> None:
        """Take the margins of these classes: their values, gradients at every cut and the norms of
        these.
        """
        count, classes = self.logits.shape
        numbers = torch.arange(classes, device=labels.device)
        others = numbers.expand(count, -1)[numbers != labels[:, None]].reshape(count, classes - 1).T
        rows = torch.arange(count, device=labels.device)
        own = self.logits[rows, labels]
        doubt = SLACK * (1 + self.logits.abs().amax(1))
        self.margins: Float[Tensor, "c b"] = own - self.logits[rows, others] - doubt
        self.gradients = [slope[labels, rows] - slope[others, rows] for slope in self._slopes()]
        self.norms: Float[Tensor, "cuts c b"] = torch.stack(
            [
                torch.linalg.vector_norm(gradient.flatten(2), dim=-1) * (1 + SLACK)
                for gradient in self.gradients
            ]
        )
        self.values = [value.detach() for value in self.values]

    def _slopes(self) -> list[Float[Tensor, "classes b ..."]]:
        """Gradients of every logit at every cut."""
        output, classes = self.values[-1], self.logits.shape[1]
        per_class = []
        for number in range(classes):
            found = torch.autograd.grad(
                output[:, number].sum(),
                self.values,
                retain_graph=number + 1 < classes,
                allow_unused=True,
            )
            per_class.append(
                [
                    torch.zeros_like(x) if part is None else part
                    for x, part in zip(self.values, found, strict=True)
                ]
            )
        return [torch.stack(parts) for parts in zip(*per_class, strict=True)]

    def limits(self) -> Float[Tensor, " b"]:
        """No radius above this can be certified by NT4: where the linear part alone eats the
        margin.
        """
        return (self.margins / self.norms[0]).amin(0).clamp(min=0)

    def certify(self, image: Int[Tensor, " k"], eps: Float[Tensor, " k"]) -> Int[Tensor, " k"]:
        """By which of METHODS the images of these numbers are certified at these radii."""
        found = torch.zeros_like(image)
        worth = torch.nonzero((self.margins[:, image] > self.norms[0, :, image] * eps).all(0))[:, 0]
        size = max(1, ENTRIES // (max(part[:, 0].numel() for part in self.gradients)))
        for start in range(0, len(worth), size):
            pairs = worth[start : start + size]
            found[pairs] = _Pairs(self, image[pairs], eps[pairs]).decide()
        return found


class _Pairs:
    """Images and radii on their way from the output to the input; a margin that is certified, or
    hopeless, is left out from there on.
    """

    def __init__(self, clean: Clean, image: Int[Tensor, " k"], eps: Float[Tensor, " k"]) -> None:
        self.clean, self.image, self.eps = clean, image, eps
        self.margins = clean.margins[:, image]
        self.tail = torch.zeros_like(self.margins)
        self.open = torch.ones_like(self.margins, dtype=torch.bool)
        self.method = torch.zeros_like(image)

    def decide(self) -> Int[Tensor, " k"]:
        if self.clean.tokens:
            self._by_tokens()
        else:
            self._by_layers()
        return torch.where(self.open.any(0), UNDECIDED, self.method)

    def _by_tokens(self) -> None:
        """Layer-wise first; gradients at all layers only for the margins that this leaves open."""
        clean, image = self.clean, self.image
        joint = Joint(clean.layers, [x[image] for x in clean.values], self.eps)
        self._close(joint.layerwise(clean.gradients[-2][:, image]), LAYERWISE)
        if not self.open.any():
            return
        most = int(self.open.sum(0).max())
        classes = self.open.to(torch.int8).topk(most, dim=0).indices
        found = joint.falls([gradient[classes, image] for gradient in clean.gradients])
        for fall, name in zip(found, (MARGIN, WHOLE), strict=True):
            self._close(torch.full_like(self.margins, torch.inf).scatter(0, classes, fall), name)
        linear = clean.norms[0, :, image] * self.eps
        missing = torch.full_like(self.margins, torch.inf).scatter(0, classes, found[1]) - linear
        near = torch.nonzero(
            self.open.any(0) & (~self.open | (self.margins - linear > NEAR * missing)).all(0)
        )[:, 0]
        if len(near):
            self._again(near)

    def _again(self, near: Int[Tensor, " p"]) -> None:
        """Margins that budgets just missed: sharper and slower radii of single layers."""
        rest = _Pairs(self.clean, self.image[near], self.eps[near])
        rest.open, rest.method = self.open[:, near], self.method[near]
        rest._by_layers()
        self.open[:, near], self.method[near] = rest.open, rest.method

    def _by_layers(self) -> None:
        self.radii = [self.eps]
        for layer, x in zip(self.clean.layers, self.clean.values, strict=False):
            self.radii[-1], lost = within_reach(self.radii[-1])
            self.tail[:, lost] = torch.inf
            self.radii.append(layer.sensitivity(x[self.image], self.radii[-1]))
        self._cut(len(self.clean.layers))
        for number in reversed(range(len(self.clean.layers))):
            hopeful = self._hopeful()
            self.tail[:, ~hopeful] = torch.inf
            pairs = torch.nonzero(hopeful)[:, 0]
            if not len(pairs) or not self._absorb(number, pairs):
                break
            if number == 0 or not self.clean.layers[number - 1].affine:
                self._cut(number)

    def _hopeful(self) -> Bool[Tensor, " k"]:
        """Pairs with an open margin whose open margins all stand above what is spent and the linear
        part.
        """
        least = self.tail + self.clean.norms[0, :, self.image] * self.eps
        return self.open.any(0) & ((least < self.margins) | ~self.open).all(0)

    def _absorb(self, number: int, pairs: Int[Tensor, " p"]) -> bool:
        """Add the remainder of one layer to the open margins of these pairs, or say that it has
        none.
        """
        layer, which = self.clean.layers[number], self.image[pairs]
        most = int(self.open[:, pairs].sum(0).max())
        classes = self.open[:, pairs].to(torch.int8).topk(most, dim=0).indices
        gradient = self.clean.gradients[number + 1][classes, which]
        found = layer.remainder(
            self.clean.values[number][which], self.radii[number][pairs], gradient
        )
        if found is None:
            return False
        self.tail[classes, pairs] = self.tail[classes, pairs] + found
        return True

    def _cut(self, number: int) -> None:
        """Close the margins that stand above the bound of the cut before this layer."""
        fall = (self.clean.norms[number, :, self.image] * self.radii[number] + self.tail) * (
            1 + SLACK
        )
        curved = (self.open & (fall < self.margins) & (self.tail > 0)).any(0)
        self._close(fall, torch.where(curved, WHOLE if number == 0 else MARGIN, LAYERWISE))

    def _close(self, fall: Float[Tensor, "c k"], name: Int[Tensor, " k"] | int) -> None:
        """Certify the margins above what they can fall."""
        closing = self.open & (fall < self.margins)
        method = torch.maximum(self.method, torch.as_tensor(name, device=self.method.device))
        self.method = torch.where(closing.any(0), method, self.method)
        self.open = self.open & ~closing
