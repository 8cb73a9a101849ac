// Sinkhorn attention: rows and columns normalised until both marginals are mu [sander22]:
// kappa = e^(<Ax,y>/eps + f(x) + g(y)), a softmax whose key bias is g.
import { decay } from "../exponential.js";
import {
  apply, combine, eigen, isSymmetric, largest, multipleOf, multiply, ofSymmetric, scaled, transpose,
} from "../matrix.js";

const TOLERANCE = 1e-9;
const MOST_STEPS = 200;
const MOST_PRODUCTS = 80; // of one linear system
export const UNSOLVED = 1e-6; // a larger residual is no plan: the flow stops there

// L^T A L / eps and the eigenvalues r of R = (I + (I + 4 M M^T)^(1/2))/2 [castin25, Sec. 4]
const inner = (head, factor, eps, d) =>
  scaled(multiply(transpose(factor, d), multiply(head.A, factor, d), d), 1 / eps);
const enlarged = (square) => (1 + Math.sqrt(1 + 4 * Math.max(square, 0))) / 2;

export const sinkhorn = {
  name: "sinkhorn",
  title: "Sinkhorn",
  formula: "Γ(x) = V ∫ κ(x,y) y dμ(y), κ = e^(⟨Ax,y⟩/ε + f(x) + g(y)) with both marginals μ",
  normalised: true,
  masked: false,
  matrices: ["A"],
  parameter: { key: "eps", label: "temperature ε", low: 0.1, high: 4, step: 0.05 },
  slope: (head, attention) => scaled(head.A, 1 / attention.eps),
  biasSlope: () => null,
  onGaussian(head, { mean, factor }, d, attention) {
    const { eps } = attention;
    const m = inner(head, factor, eps, d);
    const inverse = ofSymmetric(multiply(m, transpose(m, d), d), d, (s) => 1 / enlarged(s));
    const plan = multiply(multiply(factor, inverse, d), transpose(factor, d), d);
    const matrix = multiply(head.V, scaled(multiply(plan, head.A, d), 1 / eps), d);
    const offset = combine(apply(head.V, mean, d), apply(matrix, mean, d), 1, -1);
    return { matrix, offset };
  },
  climbs: (head, d) => (isSymmetric(head.A, d) ? multipleOf(head.V, head.A) : null),
  // half of the value of the transport problem
  energy(field) {
    const { f, g } = field.plans[0];
    let value = 0;
    for (let i = 0; i < field.n; i++) value -= field.w[i] * (f[i] + g[i]);
    return (field.attention.eps * value) / 2;
  },
  energyOnGaussian(head, { factor }, d, attention) {
    const m = inner(head, factor, attention.eps, d);
    let value = 0;
    ofSymmetric(multiply(m, transpose(m, d), d), d, (square) => {
      const r = enlarged(square);
      value += r - 1 - Math.log(r) / 2;
      return 0;
    });
    return (attention.eps * value) / 2;
  },
};

// Whether A is symmetric, to the last bit, and positive: f = g then solves the equations.
export const isEven = (A, d) =>
  largest(combine(A, transpose(A, d), 1, -1)) === 0 && Math.min(...eigen(A, d).values) >= 0;

// The plan of one head on n tokens. `table` holds T_ij = (w_i w_j)^(1/2) kappa_ij with exact rows;
// potentials of the last call start the next one.
export class Plan {
  constructor(n, even) {
    this.n = n;
    this.even = even;
    this.f = new Float64Array(n);
    this.g = new Float64Array(n);
    this.table = new Float64Array(n * n);
    this.column = new Float64Array(n);
    this.residual = Infinity;
    this.steps = 0;
    this.work = Array.from({ length: 6 }, () => new Float64Array(n));
    this.row = new Float64Array(n);
  }

  // Newton's method, with a calmer step wherever Newton's would leap.
  fit(slope, columns, root, logw) {
    const { n, g } = this;
    const [right, move] = this.work;
    let last = Infinity;
    for (this.steps = 0; this.steps < MOST_STEPS; this.steps++) {
      const error = this.build(slope, columns, root, logw);
      this.residual = error;
      if (error <= TOLERANCE) return;
      if (error < 0.5 && error < last) {
        if (this.even) this.newtonOnEven(right, move, root, error);
        else this.newtonOnDual(right, move, root, error);
        let leap = 0;
        for (let j = 0; j < n; j++) leap = Math.max(leap, Math.abs(move[j] / root[j]));
        if (leap < 1) {
          for (let j = 0; j < n; j++) g[j] += move[j] / root[j];
          last = error;
          continue;
        }
      }
      last = Infinity;
      this.calm();
    }
  }

  // Sinkhorn's own step, a column normalisation; of an even plan the mean of f and g, which halves
  // the error at least: its derivative is (I - P)/2, P the plan with eigenvalues in [0, 1].
  calm() {
    const { n, f, g, column } = this;
    for (let j = 0; j < n; j++) {
      g[j] = this.even ? (g[j] + f[j]) / 2 : g[j] - Math.log(Math.max(column[j], 1e-300));
    }
  }

  // On the concave dual, whose Hessian is that of `solve`.
  newtonOnDual(right, move, root, error) {
    for (let j = 0; j < this.n; j++) right[j] = root[j] * (1 - this.column[j]);
    this.solve(right, move, root, this.column, Math.min(0.1, error));
  }

  // On f(g) = g: (I + P) move = f - g. Eigenvalues lie in [1, 2], so that Chebyshev's iteration
  // gains a factor 3 + 8^(1/2) a product, however far apart tokens are.
  newtonOnEven(right, move, root, error) {
    const { n, f, g } = this;
    const [, , residual, direction, image] = this.work;
    const products = Math.ceil(Math.log(2 / Math.min(0.1, error)) / Math.log(3 + Math.sqrt(8)));
    move.fill(0);
    for (let j = 0; j < n; j++) {
      residual[j] = root[j] * (f[j] - g[j]);
      direction[j] = residual[j] / 1.5;
    }
    let rho = 1 / 3;
    for (let step = 0; step < products; step++) {
      this.times(direction, image);
      const next = 1 / (6 - rho);
      for (let j = 0; j < n; j++) {
        move[j] += direction[j];
        residual[j] -= direction[j] + image[j];
        direction[j] = next * (rho * direction[j] + 4 * residual[j]);
      }
      rho = next;
    }
  }

  // Rows made exact by f; returns the largest error of a column sum.
  build(slope, [x0, x1, x2], root, logw) {
    const { n, f, g, table, column, row } = this;
    const [, , , , inverse, bias] = this.work;
    for (let j = 0; j < n; j++) {
      bias[j] = g[j] + logw[j];
      inverse[j] = 1 / root[j];
    }
    column.fill(0);
    for (let i = 0; i < n; i++) {
      const u0 = slope[0] * x0[i] + slope[1] * x1[i] + slope[2] * x2[i];
      const u1 = slope[3] * x0[i] + slope[4] * x1[i] + slope[5] * x2[i];
      const u2 = slope[6] * x0[i] + slope[7] * x1[i] + slope[8] * x2[i];
      let top = -Infinity;
      for (let j = 0; j < n; j++) {
        const s = u0 * x0[j] + u1 * x1[j] + u2 * x2[j] + bias[j];
        row[j] = s;
        if (s > top) top = s;
      }
      let sum = 0;
      for (let j = 0; j < n; j++) {
        const e = decay(top - row[j]);
        row[j] = e;
        sum += e;
      }
      f[i] = -top - Math.log(sum);
      const share = root[i] / sum;
      const at = i * n;
      for (let j = 0; j < n; j++) {
        const value = row[j] * share * inverse[j];
        table[at + j] = value;
        column[j] += value * root[i];
      }
    }
    let error = 0;
    for (let j = 0; j < n; j++) {
      column[j] /= root[j];
      error = Math.max(error, Math.abs(column[j] - 1));
    }
    return error;
  }

  // Four sums at a time: one alone waits for each addition.
  times(v, out) {
    const { n, table } = this;
    const whole = n - (n % 4);
    for (let i = 0, at = 0; i < n; i++, at += n) {
      let a = 0;
      let b = 0;
      let c = 0;
      let d = 0;
      for (let j = 0; j < whole; j += 4) {
        a += table[at + j] * v[j];
        b += table[at + j + 1] * v[j + 1];
        c += table[at + j + 2] * v[j + 2];
        d += table[at + j + 3] * v[j + 3];
      }
      for (let j = whole; j < n; j++) a += table[at + j] * v[j];
      out[i] = a + b + (c + d);
    }
  }

  timesTransposed(v, out) {
    const { n, table } = this;
    out.fill(0);
    for (let i = 0, at = 0; i < n; i++, at += n) {
      const factor = v[i];
      for (let j = 0; j < n; j++) out[j] += table[at + j] * factor;
    }
  }

  // (diag(column) - T^T T + q q^T) out = right by conjugate gradients, q = w^(1/2)
  solve(right, out, root, column, tolerance) {
    const { n } = this;
    const [, , residual, direction, image, half] = this.work;
    out.fill(0);
    residual.set(right);
    direction.set(right);
    let rho = 0;
    for (let j = 0; j < n; j++) rho += right[j] * right[j];
    const enough = rho * tolerance * tolerance;
    for (let step = 0; step < MOST_PRODUCTS && rho > enough && rho > 0; step++) {
      this.times(direction, half);
      this.timesTransposed(half, image);
      let along = 0;
      for (let j = 0; j < n; j++) along += root[j] * direction[j];
      let curvature = 0;
      for (let j = 0; j < n; j++) {
        image[j] = column[j] * direction[j] - image[j] + root[j] * along;
        curvature += direction[j] * image[j];
      }
      // plans that fall apart into blocks leave the constants of the blocks open: stop there
      if (!(curvature > 1e-14 * rho)) return;
      const alpha = rho / curvature;
      let next = 0;
      for (let j = 0; j < n; j++) {
        out[j] += alpha * direction[j];
        residual[j] -= alpha * image[j];
        next += residual[j] * residual[j];
      }
      const beta = next / rho;
      rho = next;
      for (let j = 0; j < n; j++) direction[j] = residual[j] + beta * direction[j];
    }
  }
}
