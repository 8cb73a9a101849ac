// What moves: tokens in the plane or on the unit sphere, or a Gaussian as its mean and a factor of
// its covariance (then Gamma(x) = Bx + b, m' = Bm + b, L' = BL, and S = L L^T stays a covariance
// whatever the rounding [castin25]).
import { combine, multiply, transpose } from "./matrix.js";
import { Field } from "./field.js";
import { Integrator } from "./integrator.js";

const UNSOLVABLE = "has scores too large for Sinkhorn's iteration, which did not converge";

// Tokens y (n x dim). On a sphere the solver moves points of the cone over it and reads them
// radially.
export class Cloud {
  constructor(attention, masses, dim, onSphere) {
    this.field = new Field(attention, masses, dim);
    this.dim = dim;
    this.n = masses.length;
    const size = this.n * dim;
    this.points = new Float64Array(size);
    this.lengths = new Float64Array(this.n);
    const velocity = onSphere ? this.tangent.bind(this) : this.free.bind(this);
    const settle = onSphere ? (y) => this.retract(y, y) : null;
    this.integrator = new Integrator(velocity, size, settle);
  }

  free(y, out) {
    this.field.place(y);
    if (!this.field.solved) this.integrator.failed = UNSOLVABLE;
    this.field.atTokens(out);
  }

  tangent(y, out) {
    const { dim, n, points, lengths } = this;
    this.retract(y, points);
    this.free(points, out);
    for (let i = 0; i < n; i++) {
      let along = 0;
      for (let k = i * dim; k < (i + 1) * dim; k++) along += out[k] * points[k];
      for (let k = i * dim; k < (i + 1) * dim; k++) {
        out[k] = lengths[i] * (out[k] - along * points[k]);
      }
    }
  }

  retract(y, onto) {
    const { dim, n, lengths } = this;
    for (let i = 0; i < n; i++) {
      let square = 0;
      for (let k = i * dim; k < (i + 1) * dim; k++) square += y[k] * y[k];
      const length = Math.sqrt(square);
      lengths[i] = length;
      for (let k = i * dim; k < (i + 1) * dim; k++) onto[k] = y[k] / length;
    }

  }
}

export function gaussianOf(y) {
  const mean = y.subarray(0, 2);
  const factor = y.subarray(2, 6);
  return { mean, factor, cov: multiply(factor, transpose(factor, 2), 2) };
}

// The affine field of a Gaussian in the plane; null where the variant has no closed form.
export function affineField(attention, gaussian) {
  const { variant, heads } = attention;
  if (variant.onGaussian === null) return null;
  let matrix = new Float64Array(4);
  let offset = new Float64Array(2);
  for (const head of heads) {
    const part = variant.onGaussian(head, gaussian, 2, attention);
    matrix = combine(matrix, part.matrix);
    offset = combine(offset, part.offset);
  }
  return { matrix, offset };
}

// y = (mean, factor), six numbers.
export class Ellipse {
  constructor(attention) {
    this.attention = attention;
    this.integrator = new Integrator(this.velocity.bind(this), 6);
  }

  velocity(y, out) {
    const gaussian = gaussianOf(y);
    const { matrix, offset } = affineField(this.attention, gaussian);
    const [a, b, c, d] = matrix;
    out[0] = a * y[0] + b * y[1] + offset[0];
    out[1] = c * y[0] + d * y[1] + offset[1];
    for (const k of [2, 3]) {
      out[k] = a * y[k] + b * y[k + 2];
      out[k + 2] = c * y[k] + d * y[k + 2];
    }
  }

  // The energy of centred Gaussians, or null where none is known.
  energy(y) {
    const { variant, heads } = this.attention;
    const gaussian = gaussianOf(y);
    const centred = Math.hypot(...gaussian.mean) <= 1e-12 * Math.sqrt(gaussian.cov[0]);
    const known = variant.energyOnGaussian !== null && heads.length === 1 && centred;
    if (!known || variant.climbs(heads[0], 2) === null) return null;
    return variant.energyOnGaussian(heads[0], gaussian, 2, this.attention);
  }
}

// When N(0, S) blows up under one softmax head with V = I: 1/(2 lambda_max(S A_s)), infinity when
// never [castin25]; null where that theorem does not speak.
export function blowUpTime(attention, y) {
  const { variant, heads } = attention;
  if (variant.name !== "softmax" || heads.length !== 1) return null;
  const [{ A, V }] = heads;
  if (Math.max(...combine(V, Float64Array.of(1, 0, 0, 1), 1, -1).map(Math.abs)) > 1e-12) return null;
  const { cov, mean } = gaussianOf(y);
  if (Math.hypot(...mean) > 0) return null;
  const product = multiply(cov, combine(A, transpose(A, 2), 0.5, 0.5), 2);
  const half = (product[0] + product[3]) / 2;
  const det = product[0] * product[3] - product[1] * product[2];
  const top = half + Math.sqrt(Math.max(half * half - det, 0));
  return top > 1e-12 ? 1 / (2 * top) : Infinity;
}
