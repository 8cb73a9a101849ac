// Matrices by name, as `attnscope flow` knows them, and rotations.
import { combine, identity, multiply, scaled, transpose } from "./matrix.js";
import { normals } from "./random.js";

export const NAMES = [
  "identity", "minus identity", "zero", "random", "symmetric", "positive", "negative", "skew",
  "low rank", "rotation",
];

// random ones have entries of variance 1/d; a low-rank one is -r^T r with r one random row
export function named(name, d, seed) {
  const r = scaled(normals(d * d, seed), 1 / Math.sqrt(d));
  const square = multiply(transpose(r, d), r, d);
  switch (name) {
    case "identity": return identity(d);
    case "minus identity": return identity(d, -1);
    case "zero": return new Float64Array(d * d);
    case "symmetric": return combine(r, transpose(r, d), 0.5, 0.5);
    case "positive": return square;
    case "negative": return scaled(square, -1);
    case "skew": return combine(r, transpose(r, d), 1, -1);
    case "low rank": return outer(r.subarray(0, d), d);
    case "rotation": return turn(d, Math.PI / 2);
    default: return r;
  }
}

function outer(row, d) {
  const made = new Float64Array(d * d);
  for (let i = 0; i < d; i++) for (let j = 0; j < d; j++) made[i * d + j] = -row[i] * row[j];
  return made;
}

function turn(d, angle) {
  const made = identity(d);
  made[0] = made[d + 1] = Math.cos(angle);
  made[1] = -Math.sin(angle);
  made[d] = Math.sin(angle);
  return made;
}

// The same matrix for tokens of another dimension: the new axis is like the last one.
export function resized(matrix, from, to) {
  if (from === to) return matrix;
  const made = new Float64Array(to * to);
  const kept = Math.min(from, to);
  for (let i = 0; i < kept; i++)
    for (let j = 0; j < kept; j++) made[i * to + j] = matrix[i * from + j];
  for (let i = kept; i < to; i++) made[i * to + i] = matrix[from * from - 1];
  return made;
}
