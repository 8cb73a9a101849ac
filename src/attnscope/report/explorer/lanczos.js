// The largest singular value of an operator with `mv`, `rmv` and `size`, from below: Golub and
// Kahan's process with full reorthogonalisation. It can be interrupted, so that a measurement
// spreads over several frames.
import { eigen } from "./matrix.js";
import { normals } from "./random.js";

const ENOUGH = 1e-4; // of the residual; the value itself is then much closer
const MOST = 120;

export class LargestSingularValue {
  constructor(operator, seed = 1) {
    this.operator = operator;
    const size = operator.size;
    this.right = [];
    this.left = [];
    this.diagonal = [];
    this.beside = [];
    this.next = normals(size, seed);
    scale(this.next, 1 / norm(this.next));
    this.done = false;
    this.value = 0;
    this.residual = Infinity;
    this.direction = new Float64Array(size);
  }

  // Go on until it has converged or the clock says so.
  work(deadline = Infinity) {
    while (!this.done) {
      this.step();
      if (performance.now() > deadline) break;
    }
    return this.done;
  }

  step() {
    const { operator, right, left, diagonal, beside } = this;
    const v = this.next;
    right.push(v);
    const u = new Float64Array(operator.size);
    operator.mv(v, u);
    orthogonalise(u, left);
    const alpha = norm(u);
    if (alpha > 0) scale(u, 1 / alpha);
    left.push(u);
    diagonal.push(alpha);
    const w = new Float64Array(operator.size);
    operator.rmv(u, w);
    orthogonalise(w, right);
    const beta = norm(w);
    const size = right.length;
    const exhausted = size >= operator.size || !(beta > 1e-14 * Math.max(...diagonal));
    if (size % 4 === 0 || exhausted || size >= MOST) this.look(beta, exhausted || size >= MOST);
    beside.push(beta);
    if (!this.done) {
      scale(w, 1 / beta);
      this.next = w;
    }
  }

  // Singular triple of the bidiagonal matrix, and its residual.
  look(beta, last) {
    const { diagonal, beside, right } = this;
    const k = diagonal.length;
    const square = new Float64Array(k * k);
    for (let i = 0; i < k; i++) {
      square[i * k + i] = diagonal[i] ** 2 + (i > 0 ? beside[i - 1] ** 2 : 0);
      if (i + 1 < k) square[i * k + i + 1] = square[(i + 1) * k + i] = diagonal[i] * beside[i];
    }
    const { values, vectors } = eigen(square, k);
    this.value = Math.sqrt(Math.max(values[0], 0));
    const end = (diagonal[k - 1] * vectors[(k - 1) * k]) / Math.max(this.value, 1e-300);
    this.residual = beta * Math.abs(end);
    this.done = last || this.residual <= ENOUGH * this.value;
    if (!this.done) return;
    this.direction.fill(0);
    for (let i = 0; i < k; i++) add(this.direction, right[i], vectors[i * k]);
  }
}

function norm(v) {
  let sum = 0;
  for (let i = 0; i < v.length; i++) sum += v[i] * v[i];
  return Math.sqrt(sum);
}

function scale(v, s) {
  for (let i = 0; i < v.length; i++) v[i] *= s;
}

function add(v, u, s) {
  for (let i = 0; i < v.length; i++) v[i] += s * u[i];
}

function orthogonalise(v, basis) {
  for (let pass = 0; pass < 2; pass++)
    for (const u of basis) {
      let along = 0;
      for (let i = 0; i < v.length; i++) along += u[i] * v[i];
      add(v, u, -along);
    }
}
