// Softmax attention: V int e^<Ax,y> y dmu / int e^<Ax,y> dmu [vaswani17; castin25].
import { apply, isSymmetric, multipleOf, multiply } from "../matrix.js";

export const softmax = {
  name: "softmax",
  title: "softmax",
  formula: "Γ(x) = V ∫ e^⟨Ax,y⟩ y dμ(y) / ∫ e^⟨Ax,y⟩ dμ(y)",
  normalised: true,
  masked: true,
  matrices: ["A"],
  parameter: null,
  // the score of x reading y is <slope x, y> plus a bias of y
  slope: (head) => head.A,
  // gradient of that bias in y, as a matrix applied to y
  biasSlope: () => null,
  // B and b of the affine field Bx + b of N(mean, L L^T): the tilt moves the mean by S A x
  onGaussian(head, { mean, cov }, d) {
    return { matrix: multiply(head.V, multiply(cov, head.A, d), d), offset: apply(head.V, mean, d) };
  },
  // c of V = cA where the flow climbs an energy, else null
  climbs: (head, d) => (isSymmetric(head.A, d) ? multipleOf(head.V, head.A) : null),
  // half of the double integral of e^<Ax,y>
  energy(field) {
    return 0.5 * field.doubleIntegral();
  },
  energyOnGaussian(head, { cov }, d) {
    const product = multiply(head.A, cov, d);
    const square = multiply(product, product, d);
    let trace = 0;
    for (let i = 0; i < d; i++) trace += square[i * d + i];
    return trace / 4;
  },
};
