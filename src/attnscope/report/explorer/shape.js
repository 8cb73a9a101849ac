// What a cloud or an ellipse looks like: radius, rank of its covariance, clusters.
import { eigen } from "./matrix.js";

const RANK = 1e-3; // eigenvalues below this share of the largest count as zero
export const GAP = 1 / 20; // of the radius: tokens this close belong together

export function radius(x, dim) {
  let found = 0;
  for (let i = 0; i < x.length; i += dim) {
    let square = 0;
    for (let k = i; k < i + dim; k++) square += x[k] * x[k];
    if (square > found) found = square;
  }
  return Math.sqrt(found);
}

export function covariance(x, w, dim) {
  const mean = new Float64Array(dim);
  for (let i = 0; i < w.length; i++)
    for (let k = 0; k < dim; k++) mean[k] += w[i] * x[i * dim + k];
  const cov = new Float64Array(dim * dim);
  for (let i = 0; i < w.length; i++)
    for (let k = 0; k < dim; k++)
      for (let l = 0; l < dim; l++)
        cov[k * dim + l] += w[i] * (x[i * dim + k] - mean[k]) * (x[i * dim + l] - mean[l]);
  return cov;
}

export function rank(cov, dim) {
  const { values } = eigen(cov, dim);
  return values.filter((value) => value > RANK * values[0] && value > 0).length;
}

// Tokens that chains of hops of at most `gap` connect: how many groups, and the group of each.
export class Clusters {
  constructor(n) {
    this.parent = new Int32Array(n);
  }

  find(i) {
    const { parent } = this;
    while (parent[i] !== i) {
      parent[i] = parent[parent[i]];
      i = parent[i];
    }
    return i;
  }

  count(x, dim, gap) {
    const { parent } = this;
    const n = parent.length;
    for (let i = 0; i < n; i++) parent[i] = i;
    let number = n;
    for (let i = 0; i < n; i++)
      for (let j = 0; j < i; j++) {
        let square = 0;
        for (let k = 0; k < dim; k++) square += (x[i * dim + k] - x[j * dim + k]) ** 2;
        if (square > gap * gap) continue;
        const a = this.find(i);
        const b = this.find(j);
        if (a !== b) {
          parent[a] = b;
          number--;
        }
      }
    return number;
  }
}
