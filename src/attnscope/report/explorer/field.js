// The velocity that attention gives to tokens: at the tokens themselves, or anywhere.
//
// Tokens are kept by coordinate (three columns, the last zero in the plane), so that one loop
// serves both dimensions; nothing is allocated while a flow runs.
import { decay } from "./exponential.js";
import { Plan, UNSOLVED, isEven } from "./variants/sinkhorn.js";

// a d x d matrix as 3 x 3
function padded(matrix, d) {
  const made = new Float64Array(9);
  for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) made[3 * i + j] = matrix[i * d + j];
  return made;
}

export class Field {
  // attention: { variant, heads: [{A, Q, K, V}], causal, eps, bias }; masses need not sum to 1
  constructor(attention, masses, dim) {
    const { variant, heads } = attention;
    this.attention = attention;
    this.dim = dim;
    this.n = masses.length;
    const total = masses.reduce((sum, one) => sum + one, 0);
    this.w = Float64Array.from(masses, (one) => one / total);
    this.root = this.w.map(Math.sqrt);
    this.logw = this.w.map(Math.log);
    this.columns = [0, 1, 2].map(() => new Float64Array(this.n));
    this.row = new Float64Array(this.n);
    this.slopes = heads.map((head) => padded(variant.slope(head, attention, dim), dim));
    this.values = heads.map((head) => padded(head.V, dim));
    this.curbs = heads.map((head) => {
      const curb = variant.biasSlope(head, dim);
      return curb === null ? null : padded(curb, dim);
    });
    this.biases = heads.map(() => new Float64Array(this.n));
    this.plans =
      variant.name === "sinkhorn"
        ? heads.map((head) => new Plan(this.n, isEven(head.A, dim)))
        : null;
  }

  // Take in the places of the tokens, n x dim.
  place(x) {
    const { n, dim, logw } = this;
    const [x0, x1, x2] = this.columns;
    for (let j = 0; j < n; j++) {
      x0[j] = x[j * dim];
      x1[j] = x[j * dim + 1];
      if (dim === 3) x2[j] = x[j * dim + 2];
    }
    this.slopes.forEach((slope, h) => {
      const bias = this.biases[h];
      const curb = this.curbs[h];
      if (this.plans !== null) {
        const plan = this.plans[h];
        plan.fit(slope, this.columns, this.root, logw);
        for (let j = 0; j < n; j++) bias[j] = plan.g[j] + logw[j];
      } else if (curb !== null) {
        for (let j = 0; j < n; j++) {
          const a = x0[j];
          const b = x1[j];
          const c = x2[j];
          const size =
            a * (curb[0] * a + curb[1] * b + curb[2] * c) +
            b * (curb[3] * a + curb[4] * b + curb[5] * c) +
            c * (curb[6] * a + curb[7] * b + curb[8] * c);
          bias[j] = logw[j] + size / 2;
        }
      } else bias.set(logw);
    });
  }

  // Begin the next plans of Sinkhorn attention where another field has them.
  beginAt(other) {
    this.plans?.forEach((plan, h) => plan.g.set(other.plans[h].g));
  }

  // Whether the plans of Sinkhorn attention were found.
  get solved() {
    return this.plans === null || this.plans.every((plan) => plan.residual <= UNSOLVED);
  }

  // The velocity of every token where it was placed, n x dim.
  atTokens(out) {
    const { n, dim } = this;
    const [x0, x1, x2] = this.columns;
    for (let i = 0; i < n; i++) {
      this.read(x0[i], x1[i], x2[i], this.attention.causal ? i + 1 : n, out, i * dim);
    }
  }

  // The velocity at m points; under a mask, that of a token that comes after all others.
  anywhere(points, m, out) {
    const { n, dim } = this;
    for (let i = 0; i < m; i++) {
      const at = i * dim;
      this.read(points[at], points[at + 1], dim === 3 ? points[at + 2] : 0, n, out, at);
    }
  }

  // One query among the first `end` tokens.
  read(a, b, c, end, out, at) {
    let y0 = 0;
    let y1 = 0;
    let y2 = 0;
    const sum = this.sum;
    const average = this.attention.variant.normalised;
    for (let h = 0; h < this.slopes.length; h++) {
      const m = this.slopes[h];
      const u0 = m[0] * a + m[1] * b + m[2] * c;
      const u1 = m[3] * a + m[4] * b + m[5] * c;
      const u2 = m[6] * a + m[7] * b + m[8] * c;
      if (average) this.average(u0, u1, u2, this.biases[h], end);
      else this.squash(u0, u1, u2, end);
      const v = this.values[h];
      y0 += v[0] * sum[0] + v[1] * sum[1] + v[2] * sum[2];
      y1 += v[3] * sum[0] + v[4] * sum[1] + v[5] * sum[2];
      y2 += v[6] * sum[0] + v[7] * sum[1] + v[8] * sum[2];
    }
    out[at] = y0;
    out[at + 1] = y1;
    if (this.dim === 3) out[at + 2] = y2;
  }

  sum = new Float64Array(3);

  average(u0, u1, u2, bias, end) {
    const [x0, x1, x2] = this.columns;
    const { row, sum } = this;
    let top = -Infinity;
    for (let j = 0; j < end; j++) {
      const s = u0 * x0[j] + u1 * x1[j] + u2 * x2[j] + bias[j];
      row[j] = s;
      if (s > top) top = s;
    }
    let mass = 0;
    let s0 = 0;
    let s1 = 0;
    let s2 = 0;
    for (let j = 0; j < end; j++) {
      const e = decay(top - row[j]);
      mass += e;
      s0 += e * x0[j];
      s1 += e * x1[j];
      s2 += e * x2[j];
    }
    sum[0] = s0 / mass;
    sum[1] = s1 / mass;
    sum[2] = s2 / mass;
  }

  squash(u0, u1, u2, end) {
    const [x0, x1, x2] = this.columns;
    const { w, sum } = this;
    const shift = this.attention.bias;
    let s0 = 0;
    let s1 = 0;
    let s2 = 0;
    for (let j = 0; j < end; j++) {
      const s = u0 * x0[j] + u1 * x1[j] + u2 * x2[j] + shift;
      const e = decay(s < 0 ? -s : s);
      const level = (w[j] * (s < 0 ? e : 1)) / (1 + e);
      s0 += level * x0[j];
      s1 += level * x1[j];
      s2 += level * x2[j];
    }
    sum[0] = s0;
    sum[1] = s1;
    sum[2] = s2;
  }

  // The double integral of e^<Ax,y> of the first head, as a sum of logarithms would overflow last.
  doubleIntegral() {
    const [x0, x1, x2] = this.columns;
    const { n, w } = this;
    const m = this.slopes[0];
    let total = 0;
    for (let i = 0; i < n; i++) {
      const u0 = m[0] * x0[i] + m[1] * x1[i] + m[2] * x2[i];
      const u1 = m[3] * x0[i] + m[4] * x1[i] + m[5] * x2[i];
      const u2 = m[6] * x0[i] + m[7] * x1[i] + m[8] * x2[i];
      let top = -Infinity;
      for (let j = 0; j < n; j++) {
        this.row[j] = u0 * x0[j] + u1 * x1[j] + u2 * x2[j];
        if (this.row[j] > top) top = this.row[j];
      }
      let sum = 0;
      for (let j = 0; j < n; j++) sum += w[j] * decay(top - this.row[j]);
      total += w[i] * sum * Math.exp(top);
    }
    return total;
  }

  // The energy that the flow climbs, or null where it climbs none that is known.
  energy() {
    const { variant, heads, causal } = this.attention;
    if (variant.energy === null || heads.length !== 1 || causal) return null;
    return variant.climbs(heads[0], this.dim) === null ? null : variant.energy(this);
  }
}
