// Small matrices, d = 2 or 3, as flat row-major arrays.

export function identity(d, c = 1) {
  const made = new Float64Array(d * d);
  for (let i = 0; i < d; i++) made[i * d + i] = c;
  return made;
}

export function multiply(a, b, d) {
  const made = new Float64Array(d * d);
  for (let i = 0; i < d; i++)
    for (let j = 0; j < d; j++) {
      let sum = 0;
      for (let k = 0; k < d; k++) sum += a[i * d + k] * b[k * d + j];
      made[i * d + j] = sum;
    }
  return made;
}

export function transpose(a, d) {
  const made = new Float64Array(d * d);
  for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) made[j * d + i] = a[i * d + j];
  return made;
}

export function apply(a, v, d) {
  const made = new Float64Array(d);
  for (let i = 0; i < d; i++) for (let k = 0; k < d; k++) made[i] += a[i * d + k] * v[k];
  return made;
}

export function combine(a, b, s = 1, t = 1) {
  return Float64Array.from(a, (value, i) => s * value + t * b[i]);
}

export function scaled(a, s) {
  return Float64Array.from(a, (value) => s * value);
}

export function symmetricPart(a, d) {
  return combine(a, transpose(a, d), 0.5, 0.5);
}

// Eigenvalues (falling) and orthonormal eigenvectors (columns) of a symmetric matrix: Jacobi's
// rotations, which keep small eigenvalues of positive matrices accurate.
export function eigen(symmetric, d) {
  const a = Float64Array.from(symmetric);
  const v = identity(d);
  for (let sweep = 0; sweep < 30; sweep++) {
    let off = 0;
    for (let p = 0; p < d; p++) for (let q = p + 1; q < d; q++) off += a[p * d + q] ** 2;
    if (off === 0) break;
    for (let p = 0; p < d; p++)
      for (let q = p + 1; q < d; q++) {
        const apq = a[p * d + q];
        if (apq === 0) continue;
        const theta = (a[q * d + q] - a[p * d + p]) / (2 * apq);
        const t = (theta >= 0 ? 1 : -1) / (Math.abs(theta) + Math.hypot(theta, 1));
        const c = 1 / Math.hypot(t, 1);
        const s = t * c;
        for (let k = 0; k < d; k++) {
          const akp = a[k * d + p];
          const akq = a[k * d + q];
          a[k * d + p] = c * akp - s * akq;
          a[k * d + q] = s * akp + c * akq;
        }
        for (let k = 0; k < d; k++) {
          const apk = a[p * d + k];
          const aqk = a[q * d + k];
          a[p * d + k] = c * apk - s * aqk;
          a[q * d + k] = s * apk + c * aqk;
        }
        a[p * d + q] = a[q * d + p] = 0;
        for (let k = 0; k < d; k++) {
          const vkp = v[k * d + p];
          const vkq = v[k * d + q];
          v[k * d + p] = c * vkp - s * vkq;
          v[k * d + q] = s * vkp + c * vkq;
        }
      }
  }
  const order = [...Array(d).keys()].sort((i, j) => a[j * d + j] - a[i * d + i]);
  const vectors = new Float64Array(d * d);
  order.forEach((from, to) => {
    for (let k = 0; k < d; k++) vectors[k * d + to] = v[k * d + from];
  });
  return { values: order.map((i) => a[i * d + i]), vectors };
}

// phi(S) of a symmetric matrix S.
export function ofSymmetric(symmetric, d, phi) {
  const { values, vectors } = eigen(symmetric, d);
  const made = new Float64Array(d * d);
  values.forEach((value, k) => {
    const image = phi(value);
    for (let i = 0; i < d; i++)
      for (let j = 0; j < d; j++) made[i * d + j] += image * vectors[i * d + k] * vectors[j * d + k];
  });
  return made;
}

export function spectralNorm(a, d) {
  return Math.sqrt(Math.max(eigen(multiply(transpose(a, d), a, d), d).values[0], 0));
}

export function largest(a) {
  let found = 0;
  for (const value of a) found = Math.max(found, Math.abs(value));
  return found;
}

export function isSymmetric(a, d) {
  return largest(combine(a, transpose(a, d), 1, -1)) <= 1e-6 * largest(a);
}

// c where a = c b, or null.
export function multipleOf(a, b) {
  let above = 0;
  let below = 0;
  for (let i = 0; i < a.length; i++) {
    above += a[i] * b[i];
    below += b[i] * b[i];
  }
  const c = above / below;
  if (!Number.isFinite(c) || c === 0) return null;
  return largest(combine(a, b, 1, -c)) <= 1e-6 * Math.abs(c) * largest(b) ? c : null;
}
