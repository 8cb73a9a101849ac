// Clouds of tokens: drawn by a law, or carried from one space to another.
import { MOST_TOKENS, SPACES, onSphere } from "./state.js";
import { normals } from "./random.js";
import { eigen, ofSymmetric } from "./matrix.js";
import { covariance } from "./shape.js";
import { resized } from "./matrices.js";

export const LAWS = ["normal", "ring", "two groups", "grid"];

// n x dim numbers; on a circle or a sphere the points of it
export function drawn(law, n, space, seed) {
  const { dim, round } = SPACES[space];
  const x = normals(n * dim, seed);
  for (let i = 0; i < n; i++) {
    const at = i * dim;
    if (law === "ring") {
      const angle = (2 * Math.PI * i) / n;
      x.set([1.5 * Math.cos(angle), 1.5 * Math.sin(angle), 0].slice(0, dim), at);
    } else if (law === "two groups") {
      for (let k = 0; k < dim; k++) x[at + k] *= 0.25;
      x[at] += i % 2 === 0 ? 1.2 : -1.2;
    } else if (law === "grid") {
      const side = Math.ceil(Math.sqrt(n));
      const unit = side > 1 ? 3 / (side - 1) : 0;
      const place = [unit * (i % side) - 1.5, unit * Math.floor(i / side) - 1.5, 0.7];
      x.set(place.slice(0, dim), at);
    }
  }
  return round ? onSphere(x, dim) : x;
}

// Move a state to another space: matrices and tokens change their dimension, tokens go onto it.
export function moveTo(state, space) {
  const from = SPACES[state.space].dim;
  const { dim, round } = SPACES[space];
  const n = state.masses.length;
  if (dim !== from) {
    const third = normals(n, 7);
    const x = new Float64Array(n * dim);
    for (let i = 0; i < n; i++) {
      for (let k = 0; k < 2; k++) x[i * dim + k] = state.x[i * from + k];
      if (dim === 3) x[i * dim + 2] = third[i];
    }
    state.x = x;
    state.heads = state.heads.map((head) =>
      Object.fromEntries(Object.entries(head).map(([name, m]) => [name, resized(m, from, dim)])),
    );
  }
  state.space = space;
  if (round) {
    onSphere(state.x, dim);
    state.measure = "tokens";
  }
}

// The Gaussian with the mean and the covariance of the tokens.
export function fitGaussian(state) {
  const total = state.masses.reduce((sum, mass) => sum + mass, 0);
  const w = state.masses.map((mass) => mass / total);
  const cov = covariance(state.x, w, 2);
  const least = 1e-4 * Math.max(eigen(cov, 2).values[0], 1e-4);
  state.mean.fill(0);
  for (let i = 0; i < w.length; i++)
    for (const k of [0, 1]) state.mean[k] += w[i] * state.x[2 * i + k];
  state.factor = ofSymmetric(cov, 2, (value) => Math.sqrt(Math.max(value, least)));
}

// Tokens drawn from the Gaussian, as many as there are.
export function sampleGaussian(state, seed) {
  const n = Math.min(Math.max(state.masses.length, 120), MOST_TOKENS);
  const z = normals(2 * n, seed);
  const [a, b, c, d] = state.factor;
  state.x = Float64Array.from(z, (value, k) => {
    const at = k - (k % 2);
    const row = k % 2 === 0 ? a * z[at] + b * z[at + 1] : c * z[at] + d * z[at + 1];
    return state.mean[k % 2] + row;
  });
  state.masses = new Float64Array(n).fill(1);
}

// A factor of the covariance [[s11, s12], [s12, s22]], or null where it is none.
export function factorOf(s11, s12, s22) {
  const cov = Float64Array.of(s11, s12, s12, s22);
  const { values } = eigen(cov, 2);
  if (!(values[1] >= 0) || !(values[0] > 0)) return null;
  return ofSymmetric(cov, 2, (value) => Math.sqrt(Math.max(value, 0)));
}
