// L2 attention: softmax of -|Qx - Ky|^2 [kim21]. Up to a term of x alone the score is
// <2 K^T Q x, y> - |Ky|^2.
import {
  apply, combine, identity, largest, multipleOf, multiply, ofSymmetric, scaled, transpose,
} from "../matrix.js";

const gram = (head, d) => multiply(transpose(head.K, d), head.K, d);

export const l2 = {
  name: "l2",
  title: "L2",
  formula: "Γ(x) = V ∫ e^(−|Qx−Ky|²) y dμ(y) / ∫ e^(−|Qx−Ky|²) dμ(y)",
  normalised: true,
  masked: true,
  matrices: ["Q", "K"],
  parameter: null,
  slope: (head, attention, d) => scaled(multiply(transpose(head.K, d), head.Q, d), 2),
  biasSlope: (head, d) => scaled(gram(head, d), -2),
  // V(m + N (I + N^T G N)^-1 N^T K^T (Qx - Km)), N = sqrt(2) L
  onGaussian(head, { mean, factor }, d) {
    const spread = scaled(factor, Math.SQRT2);
    const back = transpose(spread, d);
    const system = combine(
      identity(d), multiply(back, multiply(gram(head, d), spread, d), d),
    );
    const inverse = ofSymmetric(system, d, (value) => 1 / value);
    const gain = multiply(
      multiply(spread, inverse, d), multiply(back, transpose(head.K, d), d), d,
    );
    const centre = combine(mean, apply(gain, apply(head.K, mean, d), d), 1, -1);
    return {
      matrix: multiply(head.V, multiply(gain, head.Q, d), d),
      offset: apply(head.V, centre, d),
    };
  },
  climbs(head, d) {
    const tied = largest(combine(head.Q, head.K, 1, -1)) <= 1e-9 * largest(head.K);
    return tied ? multipleOf(head.V, gram(head, d)) : null;
  },
  energy: null,
  // tr(GS)/2 - log det(I + 2SG)/4
  energyOnGaussian(head, { factor }, d) {
    const inner = multiply(transpose(factor, d), multiply(gram(head, d), factor, d), d);
    let value = 0;
    ofSymmetric(inner, d, (one) => {
      value += one / 2 - Math.log1p(2 * Math.max(one, 0)) / 4;
      return 0;
    });
    return value;
  },
};
