// The derivative of attention in all tokens, as products with it and with its transpose, in the
// metric of L2(mu): W^(1/2) J W^(-1/2).
//
//   (J e)_i = sum_h C_h sum_j [ P_ij e_j + D_ij (x_j - c_i) ds_ij ],
//   ds_ij = <M e_i, x_j> + <M x_i, e_j> + db_j,
//
// with D = P and c_i the barycentre m_i for couplings whose rows sum to one, D the slope of the
// sigmoid and c = 0 otherwise; b is the bias of the key. That of Sinkhorn attention depends on
// every token: its derivative solves (I - T^T T + q q^T) y = r, see Plan.
import { decay } from "./exponential.js";

const ACCURATE = 1e-12;

export class Jacobian {
  // at the tokens that `field` has been given by `place`
  constructor(field) {
    const { n, dim, attention } = field;
    Object.assign(this, { field, n, dim, size: n * dim, causal: attention.causal });
    this.columns = field.columns.map((column) => column.slice());
    this.heads = field.slopes.map((slope, h) => this.head(slope, h));
    this.inner = new Float64Array(3 * n);
    this.moved = new Float64Array(3 * n);
    this.shift = new Float64Array(n);
    this.turned = new Float64Array(n * n);
    this.spare = Array.from({ length: 2 }, () => new Float64Array(n));
  }

  // Coupling, slopes and barycentres of one head.
  head(slope, h) {
    const { n, field, columns: [x0, x1, x2] } = this;
    const average = field.attention.variant.normalised;
    const { w } = field;
    const made = {
      slope,
      value: field.values[h],
      curb: field.curbs[h],
      plan: field.plans === null ? null : field.plans[h],
      coupling: new Float64Array(n * n),
      slopes: null,
      centre: new Float64Array(3 * n),
      queries: new Float64Array(3 * n),
    };
    if (!average) made.slopes = new Float64Array(n * n);
    const { coupling, centre, queries } = made;
    const bias = field.biases[h];
    for (let i = 0; i < n; i++) {
      const end = this.causal ? i + 1 : n;
      for (let k = 0; k < 3; k++) {
        const r = 3 * k;
        queries[3 * i + k] = slope[r] * x0[i] + slope[r + 1] * x1[i] + slope[r + 2] * x2[i];
      }
      const [u0, u1, u2] = queries.subarray(3 * i, 3 * i + 3);
      const at = i * n;
      let top = -Infinity;
      for (let j = 0; j < end; j++) {
        const s = u0 * x0[j] + u1 * x1[j] + u2 * x2[j];
        coupling[at + j] = s + (average ? bias[j] : field.attention.bias);
        top = Math.max(top, coupling[at + j]);
      }
      if (!average) {
        for (let j = 0; j < end; j++) {
          const s = coupling[at + j];
          const e = decay(Math.abs(s));
          coupling[at + j] = (w[j] * (s < 0 ? e : 1)) / (1 + e);
          made.slopes[at + j] = (w[j] * e) / (1 + e) ** 2;
        }
        continue;
      }
      let sum = 0;
      for (let j = 0; j < end; j++) {
        coupling[at + j] = decay(top - coupling[at + j]);
        sum += coupling[at + j];
      }
      for (let j = 0; j < end; j++) {
        coupling[at + j] /= sum;
        const p = coupling[at + j];
        centre[3 * i] += p * x0[j];
        centre[3 * i + 1] += p * x1[j];
        centre[3 * i + 2] += p * x2[j];
      }
    }
    if (average) made.slopes = coupling;
    return made;
  }

  // flat n x dim, divided (or multiplied) by the roots of the weights, as n x 3
  spread(from, to, power) {
    const { n, dim, field: { root } } = this;
    for (let i = 0; i < n; i++)
      for (let k = 0; k < dim; k++) to[3 * i + k] = from[i * dim + k] * root[i] ** power;
  }

  gather(from, to, power) {
    const { n, dim, field: { root } } = this;
    for (let i = 0; i < n; i++)
      for (let k = 0; k < dim; k++) to[i * dim + k] = from[3 * i + k] * root[i] ** power;
  }

  mv(e, out) {
    this.spread(e, this.inner, -1);
    this.moved.fill(0);
    for (const head of this.heads) this.push(head);
    this.gather(this.moved, out, 1);
  }

  rmv(r, out) {
    this.spread(r, this.inner, 1);
    this.moved.fill(0);
    for (const head of this.heads) this.pull(head);
    this.gather(this.moved, out, -1);
  }

  push(head) {
    const { n, inner, moved, shift, columns: [x0, x1, x2] } = this;
    const { slope, value, coupling, slopes, centre, queries } = head;
    this.keyShift(head);
    for (let i = 0; i < n; i++) {
      const end = this.causal ? i + 1 : n;
      const at = i * n;
      const i3 = 3 * i;
      const [m0, m1, m2] = matvec(slope, inner, i3);
      const u0 = queries[i3];
      const u1 = queries[i3 + 1];
      const u2 = queries[i3 + 2];
      let s0 = 0;
      let s1 = 0;
      let s2 = 0;
      let total = 0;
      for (let j = 0, j3 = 0; j < end; j++, j3 += 3) {
        const e0 = inner[j3];
        const e1 = inner[j3 + 1];
        const e2 = inner[j3 + 2];
        const ds =
          m0 * x0[j] + m1 * x1[j] + m2 * x2[j] + u0 * e0 + u1 * e1 + u2 * e2 + shift[j];
        const p = coupling[at + j];
        const d = slopes[at + j] * ds;
        total += d;
        s0 += p * e0 + d * x0[j];
        s1 += p * e1 + d * x1[j];
        s2 += p * e2 + d * x2[j];
      }
      s0 -= total * centre[i3];
      s1 -= total * centre[i3 + 1];
      s2 -= total * centre[i3 + 2];
      for (let k = 0; k < 3; k++)
        moved[i3 + k] += value[3 * k] * s0 + value[3 * k + 1] * s1 + value[3 * k + 2] * s2;
    }
  }

  // db_j of a head along `inner`
  keyShift(head) {
    const { n, inner, shift, columns: [x0, x1, x2] } = this;
    const { slope, curb, plan, coupling, queries } = head;
    shift.fill(0);
    if (curb !== null) {
      for (let j = 0; j < n; j++) {
        const [c0, c1, c2] = matvec3(curb, x0[j], x1[j], x2[j]);
        shift[j] = c0 * inner[3 * j] + c1 * inner[3 * j + 1] + c2 * inner[3 * j + 2];
      }
    }
    if (plan === null) return;
    const { root } = this.field;
    const [right, answer] = this.spare;
    const rows = this.turned.subarray(0, n);
    right.fill(0);
    for (let i = 0; i < n; i++) {
      const at = i * n;
      const [m0, m1, m2] = matvec(slope, inner, 3 * i);
      const [u0, u1, u2] = queries.subarray(3 * i, 3 * i + 3);
      let sum = 0;
      for (let j = 0; j < n; j++) {
        const ds =
          m0 * x0[j] + m1 * x1[j] + m2 * x2[j] +
          u0 * inner[3 * j] + u1 * inner[3 * j + 1] + u2 * inner[3 * j + 2];
        const weighted = coupling[at + j] * ds;
        sum += weighted;
        right[j] -= (weighted * root[i] * root[i]) / root[j];
      }
      rows[i] = root[i] * sum;
    }
    plan.timesTransposed(rows, answer);
    for (let j = 0; j < n; j++) right[j] += answer[j];
    plan.solve(right, answer, root, ones(n), ACCURATE);
    for (let j = 0; j < n; j++) shift[j] = answer[j] / root[j];
  }

  pull(head) {
    const { n, inner, moved, shift, turned, columns: [x0, x1, x2] } = this;
    const { slope, value, curb, plan, coupling, slopes, centre, queries } = head;
    const read = new Float64Array(3 * n);
    shift.fill(0);
    for (let i = 0; i < n; i++) {
      const end = this.causal ? i + 1 : n;
      const i3 = 3 * i;
      for (let k = 0; k < 3; k++)
        read[i3 + k] =
          value[k] * inner[i3] + value[3 + k] * inner[i3 + 1] + value[6 + k] * inner[i3 + 2];
      const [y0, y1, y2] = read.subarray(i3, i3 + 3);
      const own = y0 * centre[i3] + y1 * centre[i3 + 1] + y2 * centre[i3 + 2];
      for (let j = 0, at = i * n; j < end; j++, at++) {
        const z = slopes[at] * (y0 * x0[j] + y1 * x1[j] + y2 * x2[j] - own);
        turned[at] = z;
        shift[j] += z;
      }
    }
    if (plan !== null) this.pullPotentials(plan);
    for (let i = 0; i < n; i++) {
      const end = this.causal ? i + 1 : n;
      const i3 = 3 * i;
      const [y0, y1, y2] = read.subarray(i3, i3 + 3);
      const u0 = queries[i3];
      const u1 = queries[i3 + 1];
      const u2 = queries[i3 + 2];
      let s0 = 0;
      let s1 = 0;
      let s2 = 0;
      for (let j = 0, j3 = 0, at = i * n; j < end; j++, j3 += 3, at++) {
        const p = coupling[at];
        const z = turned[at];
        s0 += z * x0[j];
        s1 += z * x1[j];
        s2 += z * x2[j];
        moved[j3] += p * y0 + z * u0;
        moved[j3 + 1] += p * y1 + z * u1;
        moved[j3 + 2] += p * y2 + z * u2;
      }
      for (let k = 0; k < 3; k++)
        moved[i3 + k] += slope[k] * s0 + slope[3 + k] * s1 + slope[6 + k] * s2;
    }
    if (curb === null) return;
    for (let j = 0; j < n; j++) {
      const along = matvec3(curb, x0[j], x1[j], x2[j]);
      for (let k = 0; k < 3; k++) moved[3 * j + k] += shift[j] * along[k];
    }
  }

  // What the potentials of a plan add to the cotangents of the scores.
  pullPotentials(plan) {
    const { n, shift, turned, field: { root } } = this;
    const [right, answer] = this.spare;
    for (let j = 0; j < n; j++) right[j] = shift[j] / root[j];
    plan.solve(right, answer, root, ones(n), ACCURATE);
    plan.times(answer, right);
    for (let i = 0, at = 0; i < n; i++)
      for (let j = 0; j < n; j++, at++)
        turned[at] += plan.table[at] * (right[i] * root[j] - answer[j] * root[i]);
  }
}

function matvec(m, v, at) {
  return matvec3(m, v[at], v[at + 1], v[at + 2]);
}

function matvec3(m, a, b, c) {
  return [
    m[0] * a + m[1] * b + m[2] * c,
    m[3] * a + m[4] * b + m[5] * c,
    m[6] * a + m[7] * b + m[8] * c,
  ];
}

function ones(n) {
  return new Float64Array(n).fill(1);
}
