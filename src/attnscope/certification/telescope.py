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

from attnscope.bounds.near.place import Kept
from attnscope.certification.certificate import Method
from attnscope.certification.chain import Link, within_reach
from attnscope.certification.joint import Joint
from attnscope.layers import OverBall, Recalling, affine
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

    def __init__(self, links: list[Link], images: Float[Tensor, "b ..."]) -> None:
        self.links, self.tokens = links, True
        self.values = [images.detach().requires_grad_()]
        with torch.enable_grad():
            for link in links:
                self.values.append(self._applied(link, self.values[-1]))
        self.logits: Float[Tensor, "b classes"] = self.values[-1].detach()

    def _applied(self, link: Link, x: Tensor) -> Tensor:
        version = x._version
        made = link.layer(x)
        if x._version != version:
            raise ValueError(f"{link.place} writes over its input. Let it return a new tensor.")
        if made.shape[:1] != x.shape[:1]:
            raise ValueError(
                f"{link.place} mixes images: it makes shape {tuple(made.shape)} of"
                f" {tuple(x.shape)}. Keep the first axis for the batch."
            )
        return made

    def aim(self, labels: Int[Tensor, " b"]) -> None:
        """Take the margins of these classes: their values, gradients at every cut and the norms of
        these.
        """
        self.labels = labels
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
        self.known = {
            number: Kept.of(value)
            for number, (link, value) in enumerate(zip(self.links, self.values, strict=False))
            if isinstance(link.layer, Recalling)
        }

    def _slopes(self) -> list[Float[Tensor, "classes b ..."]]:
        """Gradients of every logit at every cut."""
        output, classes = self.values[-1], self.logits.shape[1]
        per_class = []
        for number in range(classes):
            with torch.enable_grad():
                one = output[:, number].sum()
            found = torch.autograd.grad(
                one,
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

    def certify(
        self, image: Int[Tensor, " k"], eps: Float[Tensor, " k"]
    ) -> tuple[Int[Tensor, " k"], Float[Tensor, " k"]]:
        """By which of METHODS the images of these numbers are certified at these radii, and what
        share of the margin that is worst off is taken there: above 1, or unknown, where it is not
        certified.
        """
        found, taken = torch.zeros_like(image), torch.full_like(eps, torch.inf)
        worth = torch.nonzero((self.margins[:, image] > self.norms[0, :, image] * eps).all(0))[:, 0]
        size = max(1, ENTRIES // (max(part[:, 0].numel() for part in self.gradients)))
        for start in range(0, len(worth), size):
            pairs = worth[start : start + size]
            some = _Pairs(self, image[pairs], eps[pairs])
            found[pairs], taken[pairs] = some.decide(), some.taken()
        return found, taken


class _Pairs:
    """Images and radii on their way from the output to the input; a margin that is certified, or
    hopeless, is left out from there on.
    """

    def __init__(self, clean: Clean, image: Int[Tensor, " k"], eps: Float[Tensor, " k"]) -> None:
        self.clean, self.image, self.eps = clean, image, eps
        self.margins = clean.margins[:, image]
        self.tail = torch.zeros_like(self.margins)
        self.fall = torch.full_like(self.margins, torch.inf)
        self.known = {number: kept.some(image) for number, kept in clean.known.items()}
        self.open = torch.ones_like(self.margins, dtype=torch.bool)
        self.method = torch.zeros_like(image)
        self.radii: list[Tensor] = []
        self.found: list[OverBall] = []

    def decide(self) -> Int[Tensor, " k"]:
        clean = self.clean
        if clean.tokens:
            values = [x[self.image] for x in clean.values]
            joint = Joint(clean.links, values, self.eps, self.known)
            clean.tokens = joint.fits
        if clean.tokens:
            self._by_tokens(joint)
        else:
            self._by_layers()
        return torch.where(self.open.any(0), UNDECIDED, self.method)

    def taken(self) -> Float[Tensor, " k"]:
        """The largest share of a margin by which it may fall, as far as that was worked out."""
        return (self.fall / self.margins).amax(0)

    def _by_tokens(self, joint: Joint) -> None:
        """Layer-wise first; gradients at all layers only for the margins that this leaves open."""
        clean, image = self.clean, self.image
        self._close(joint.layerwise(clean.gradients, image), LAYERWISE)
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
        rest.fall = self.fall[:, near]
        rest._by_layers()
        self.open[:, near], self.method[near] = rest.open, rest.method
        self.fall[:, near] = rest.fall

    def _by_layers(self) -> None:
        self.radii, self.found = [self.eps], []
        for number, (link, x) in enumerate(zip(self.clean.links, self.clean.values, strict=False)):
            self.radii[-1], lost = within_reach(self.radii[-1])
            self.tail[:, lost] = torch.inf
            before = self.found[-1] if self.found else None
            known = self.known.get(number)
            self.found.append(link.over(x[self.image], self.radii[-1], None, before, known))
            self.radii.append(self.found[-1].radius)
        self._cut(len(self.found))
        for number in reversed(range(len(self.found))):
            hopeful = self._hopeful()
            self.tail[:, ~hopeful] = torch.inf
            if not hopeful.any() or not self._absorb(number, hopeful):
                break
            if number == 0 or self.found[number - 1].remainder is not affine:
                self._cut(number)

    def _hopeful(self) -> Bool[Tensor, " k"]:
        """Pairs with an open margin whose open margins all stand above what is spent and the linear
        part.
        """
        least = self.tail + self.clean.norms[0, :, self.image] * self.eps
        return self.open.any(0) & ((least < self.margins) | ~self.open).all(0)

    def _absorb(self, number: int, hopeful: Bool[Tensor, " k"]) -> bool:
        """Add the remainder of one layer to the open margins, or say that it has none."""
        link, found = self.clean.links[number], self.found[number]
        if found.remainder is None or found.remainder is affine:
            return found.remainder is not None
        most = int(self.open[:, hopeful].sum(0).max())
        classes = self.open.to(torch.int8).topk(most, dim=0).indices
        gradient = self.clean.gradients[number + 1][classes, self.image]
        left = link.remainder(found, gradient).within(self.radii[number])
        self.tail = self.tail.scatter_add(0, classes, left)
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
        self.fall = torch.minimum(self.fall, fall)
        closing = self.open & (fall < self.margins)
        method = torch.maximum(self.method, torch.as_tensor(name, device=self.method.device))
        self.method = torch.where(closing.any(0), method, self.method)
        self.open = self.open & ~closing
