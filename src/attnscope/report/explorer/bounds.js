// The proved bounds on the local Lipschitz constant that are closed forms, under the names that
// `attnscope theorems` gives them: { name, value, where }. Heads are added with the norms of their
// values. Proofs: docs/theorems.md.
import { eigen, multiply, spectralNorm } from "./matrix.js";
import { radius } from "./shape.js";

const SLACK = 1 + 1e-10; // for rounding
const BALL = "any tokens in the ball of radius R";
const HERE = "at these tokens";
const ANY = "any number of tokens in the ball of radius R";
const PERRON = 60;
const ROWS = 16; // between two pauses

// All bounds at the tokens of a Jacobian, the smallest first; it pauses after every few rows.
export function* boundSteps(jacobian) {
  const { field, n, dim } = jacobian;
  const { attention } = field;
  const x = new Float64Array(n * dim);
  for (let i = 0; i < n; i++)
    for (let k = 0; k < dim; k++) x[i * dim + k] = jacobian.columns[k][i];
  const ball = { radius: radius(x, dim), crowd: 1 / Math.min(...field.w) };
  const norms = attention.heads.map((head) => ({
    A: spectralNorm(head.A, dim),
    Q: spectralNorm(head.Q, dim),
    K: spectralNorm(head.K, dim),
    V: spectralNorm(head.V, dim),
    slope: spectralNorm(attention.variant.slope(head, attention, dim), dim),
  }));
  const found = onBall[attention.variant.name](attention, norms, ball);
  if (attention.variant.name === "softmax" || attention.variant.name === "l2") {
    found.push(...(yield* atPoint(jacobian, norms)), yield* blocks(jacobian));
  }
  return found
    .map((one) => ({ ...one, value: one.value * SLACK }))
    .sort((a, b) => a.value - b.value);
}

export function boundsAt(jacobian) {
  const steps = boundSteps(jacobian);
  let step = steps.next();
  while (!step.done) step = steps.next();
  return step.value;
}

const over = (norms, formula) =>
  norms.reduce((sum, norm) => sum + (norm.V === 0 ? 0 : norm.V * formula(norm)), 0);

const onBall = {
  softmax({ causal }, norms, { radius: R, crowd: N }) {
    const made = [
      ["U1", BALL, (t) => Math.sqrt(3 * (N + 4 * N * t * t + t * t))],
      ["U1'", BALL, (t) => Math.sqrt(N) * (1 + t) + t],
    ];
    if (causal) made.push(["K3", ANY, (t) => t + 2 * (1 + 2 * t) * Math.exp(2 * t)]);
    else {
      made.push(["M1", ANY, (t) => t + (1 + 2 * t) * Math.exp(2 * t)]);
      made.push(["M1'", ANY, (t) => (1 + t) * Math.exp(t) + t]);
    }
    return made.map(([name, where, formula]) => ({
      name, where, value: over(norms, ({ A }) => formula(A * R * R)),
    }));
  },
  l2({ causal }, norms, { radius: R }) {
    const value = over(norms, ({ Q, K, slope }) => {
      const rho = (Q + K) * R;
      const measure = Math.exp(rho * rho) * (1 + 4 * K * R * rho);
      return slope * R * R + (causal ? 2 : 1) * measure;
    });
    return [{ name: causal ? "L2-K3" : "L2-M1", where: ANY, value }];
  },
  sinkhorn({ eps }, norms, { radius: R }) {
    const size = ({ A }) => (A * R * R) / eps;
    const first = (m) => m + Math.exp(4 * m) * (1 + 5 * m + m * Math.exp(2 * m));
    const second = (m) => 1 + 3 * m + m * Math.exp(2 * m);
    return [
      { name: "Sinkhorn-M1", where: ANY, value: over(norms, (norm) => first(size(norm))) },
      { name: "Sinkhorn-M1'", where: ANY, value: over(norms, (norm) => second(size(norm))) },
    ];
  },
  sigmoid({ bias }, norms, { radius: R }) {
    const level = (s) => 1 / (1 + Math.exp(-s));
    const both = (A, steepest, highest) => 2 * steepest * R * R * A + highest;
    const sharp = ({ A }) => {
      const reach = A * R * R;
      const at = level(bias + Math.min(Math.max(-bias, -reach), reach));
      return both(A, at * (1 - at), level(bias + reach));
    };
    return [
      { name: "S1", where: ANY, value: over(norms, sharp) },
      { name: "S1-plain", where: ANY, value: over(norms, ({ A }) => both(A, 1 / 4, 1)) },
    ];
  },
};

// U1'' and U1''-columns: sqrt(c)(1 + max |Cov_i|^(1/2) |kappa_ij|) + max |Cov_i M|, and the same
// with the middle term summed by columns.
function* atPoint(jacobian, norms) {
  const plain = [];
  const columns = [];
  for (const head of jacobian.heads) {
    const { sink, steep, steepColumn, path } = yield* pieces(jacobian, head);
    plain.push(Math.sqrt(sink) * (1 + steep) + path);
    columns.push(Math.sqrt(sink) + Math.sqrt(steepColumn) + path);
  }
  const total = (values) =>
    values.reduce((sum, value, h) => sum + (norms[h].V === 0 ? 0 : norms[h].V * value), 0);
  return [
    { name: "U1''", where: HERE, value: total(plain) },
    { name: "U1''-columns", where: HERE, value: total(columns) },
  ];
}

// Of one head: largest column sum of the coupling, largest slopes, longest query path.
function* pieces(jacobian, head) {
  const { n, field: { w } } = jacobian;
  const sums = new Float64Array(n);
  const steepSums = new Float64Array(n);
  let steep = 0;
  let path = 0;
  for (let i = 0; i < n; i++) {
    if (i % ROWS === ROWS - 1) yield;
    const cov = rowCovariance(jacobian, head, i);
    const spread = Math.max(eigen(cov, 3).values[0], 0);
    path = Math.max(path, spectralNorm(multiply(cov, head.slope, 3), 3));
    for (let j = 0; j < n; j++) {
      const [k0, k1, k2] = keySlope(jacobian, head, i, j);
      const square = spread * (k0 * k0 + k1 * k1 + k2 * k2);
      const p = (head.coupling[i * n + j] * w[i]) / w[j];
      steep = Math.max(steep, square);
      sums[j] += p;
      steepSums[j] += p * square;
    }
  }
  return {
    sink: Math.max(...sums), steep: Math.sqrt(steep), steepColumn: Math.max(...steepSums), path,
  };
}

function rowCovariance(jacobian, head, i) {
  const { n, columns: [x0, x1, x2] } = jacobian;
  const cov = new Float64Array(9);
  const [m0, m1, m2] = head.centre.subarray(3 * i, 3 * i + 3);
  for (let j = 0; j < (jacobian.causal ? i + 1 : n); j++) {
    const p = head.coupling[i * n + j];
    const a = x0[j] - m0;
    const b = x1[j] - m1;
    const c = x2[j] - m2;
    cov[0] += p * a * a;
    cov[1] += p * a * b;
    cov[2] += p * a * c;
    cov[4] += p * b * b;
    cov[5] += p * b * c;
    cov[8] += p * c * c;
  }
  cov[3] = cov[1];
  cov[6] = cov[2];
  cov[7] = cov[5];
  return cov;
}

const slopeOfKey = new Float64Array(3);

// the gradient of the score s_ij in the key x_j
function keySlope(jacobian, { queries, curb }, i, j) {
  for (let k = 0; k < 3; k++) {
    slopeOfKey[k] = queries[3 * i + k];
    if (curb === null) continue;
    for (let l = 0; l < 3; l++) slopeOfKey[k] += curb[3 * k + l] * jacobian.columns[l][j];
  }
  return slopeOfKey;
}

// B1: the norm of the matrix of the norms of all blocks J_ij.
function* blocks(jacobian) {
  const { n, field: { root } } = jacobian;
  const norms = new Float64Array(n * n);
  const block = new Float64Array(9);
  for (let i = 0; i < n; i++) {
    if (i % ROWS === ROWS - 1) yield;
    const own = jacobian.heads.map((head) =>
      multiply(head.value, multiply(rowCovariance(jacobian, head, i), head.slope, 3), 3),
    );
    for (let j = 0; j < (jacobian.causal ? i + 1 : n); j++) {
      block.fill(0);
      jacobian.heads.forEach((head, h) => {
        addBlock(jacobian, head, i, j, block);
        if (i === j) for (let k = 0; k < 9; k++) block[k] += own[h][k];
      });
      norms[i * n + j] = (norm3(block) * root[i]) / root[j];
    }
  }
  return { name: "B1", where: HERE, value: perron(norms, n) };
}

// P_ij C (I + (x_j - m_i) kappa_ij^T)
function addBlock(jacobian, head, i, j, block) {
  const { n, columns: [x0, x1, x2] } = jacobian;
  const { value, centre, coupling } = head;
  const p = coupling[i * n + j];
  const kappa = keySlope(jacobian, head, i, j);
  const a = x0[j] - centre[3 * i];
  const b = x1[j] - centre[3 * i + 1];
  const c = x2[j] - centre[3 * i + 2];
  for (let k = 0; k < 9; k += 3) {
    const along = value[k] * a + value[k + 1] * b + value[k + 2] * c;
    for (let l = 0; l < 3; l++) block[k + l] += p * (value[k + l] + along * kappa[l]);
  }
}

// The spectral norm of a 3 x 3 matrix: the largest root of the characteristic polynomial of its
// Gram matrix, by the cosine formula.
function norm3(m) {
  const g00 = m[0] * m[0] + m[3] * m[3] + m[6] * m[6];
  const g11 = m[1] * m[1] + m[4] * m[4] + m[7] * m[7];
  const g22 = m[2] * m[2] + m[5] * m[5] + m[8] * m[8];
  const g01 = m[0] * m[1] + m[3] * m[4] + m[6] * m[7];
  const g02 = m[0] * m[2] + m[3] * m[5] + m[6] * m[8];
  const g12 = m[1] * m[2] + m[4] * m[5] + m[7] * m[8];
  const mean = (g00 + g11 + g22) / 3;
  const a = g00 - mean;
  const b = g11 - mean;
  const c = g22 - mean;
  const off = g01 * g01 + g02 * g02 + g12 * g12;
  const size = Math.sqrt((a * a + b * b + c * c + 2 * off) / 6);
  if (!(size > 1e-300)) return Math.sqrt(Math.max(mean, 0));
  const det =
    a * (b * c - g12 * g12) - g01 * (g01 * c - g12 * g02) + g02 * (g01 * g12 - b * g02);
  const angle = Math.acos(Math.min(Math.max(det / (2 * size ** 3), -1), 1)) / 3;
  return Math.sqrt(Math.max(mean + 2 * size * Math.cos(angle), 0)) * (1 + 1e-9);
}

// The norm of a matrix N without negative entries, from above: max (N^T N v)_j / v_j for any v > 0
// (Collatz and Wielandt), v from power steps.
function perron(matrix, n) {
  let v = new Float64Array(n).fill(1);
  let bound = Infinity;
  const half = new Float64Array(n);
  for (let step = 0; step < PERRON; step++) {
    const next = new Float64Array(n);
    for (let i = 0, at = 0; i < n; i++, at += n) {
      let sum = 0;
      for (let j = 0; j < n; j++) sum += matrix[at + j] * v[j];
      half[i] = sum;
      for (let j = 0; j < n; j++) next[j] += matrix[at + j] * sum;
    }
    let ratio = 0;
    let top = 0;
    for (let j = 0; j < n; j++) {
      ratio = Math.max(ratio, next[j] / v[j]);
      top = Math.max(top, next[j]);
    }
    const closer = bound - ratio;
    bound = Math.min(bound, ratio);
    if (top === 0 || (step > 2 && closer < 1e-9 * bound)) break;
    // a little of every token keeps v positive
    v = next.map((value) => value / top + 1e-9);
  }
  return Math.sqrt(bound);
}
