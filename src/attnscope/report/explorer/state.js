// Everything that a reader can choose, as one plain object, and the link that restores it.
//
// { variant, causal, space, measure, heads: [{A, Q, K, V}], eps, bias, speed, growing,
//   x, masses (tokens), mean, factor (Gaussian), time, preset }
import { VARIANTS } from "./variants.js";

export const SPACES = {
  plane: { title: "plane", dim: 2, round: false },
  circle: { title: "circle", dim: 2, round: true },
  sphere: { title: "sphere", dim: 3, round: true },
};
export const MOST_TOKENS = 400;
export const MOST_HEADS = 3;
const LARGEST = 1e6;

export function attentionOf(state) {
  const variant = VARIANTS[state.variant];
  const causal = variant.masked && state.causal && state.measure === "tokens";
  return { variant, heads: state.heads, causal, eps: state.eps, bias: state.bias };
}

export function copyOf(state) {
  return {
    ...state,
    heads: state.heads.map((head) =>
      Object.fromEntries(Object.entries(head).map(([name, m]) => [name, Float64Array.from(m)])),
    ),
    x: Float64Array.from(state.x),
    masses: Float64Array.from(state.masses),
    mean: Float64Array.from(state.mean),
    factor: Float64Array.from(state.factor),
  };
}

// The state of a preset, which leaves out what is usual.
export function stateOf(preset) {
  const usual = {
    variant: "softmax", causal: false, space: "plane", measure: "tokens", eps: 1, bias: 0,
    speed: 1, growing: false, time: 0, mean: [0, 0], factor: [1, 0, 0, 1], masses: null,
  };
  const state = { ...usual, ...preset.state, preset: preset.name };
  const { dim } = SPACES[state.space];
  if (state.masses === null) state.masses = new Float64Array(state.x.length / dim).fill(1);
  return copyOf(state);
}

const NUMBERS = ["eps", "bias", "speed", "time"];

// What stands behind # in a link: readable names, tokens as base64 of their 64-bit numbers.
export function encode(state) {
  const parts = new URLSearchParams();
  for (const name of ["variant", "space", "measure", "preset"]) parts.set(name, state[name]);
  for (const name of ["causal", "growing"]) if (state[name]) parts.set(name, "1");
  for (const name of NUMBERS) parts.set(name, String(state[name]));
  state.heads.forEach((head, h) => {
    for (const [name, matrix] of Object.entries(head)) {
      parts.set(`${name}${h + 1}`, Array.from(matrix).join(","));
    }
  });
  for (const name of ["x", "masses", "mean", "factor"]) parts.set(name, packed(state[name]));
  return parts.toString();
}

// The state of a link: { state, problem }; a link that cannot be read gives the fallback and a
// sentence.
export function decode(hash, presets, fallback) {
  const text = hash.replace(/^#/, "");
  if (text === "") return { state: stateOf(fallback), problem: "" };
  try {
    const parts = new URLSearchParams(text);
    if (!parts.has("variant") && parts.has("preset")) {
      const named = presets.find((one) => one.name === parts.get("preset"));
      if (!named) throw new Error("it names a starting point that does not exist");
      return { state: stateOf(named), problem: "" };
    }
    return { state: checked(parts, presets), problem: "" };
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error);
    const problem = `This link could not be read (${why}); here is “${fallback.title}” instead.`;
    return { state: stateOf(fallback), problem };
  }
}

function checked(parts, presets) {
  const state = { causal: parts.has("causal"), growing: parts.has("growing") };
  const known = { variant: VARIANTS, space: SPACES, measure: { tokens: 1, gaussian: 1 } };
  for (const [name, values] of Object.entries(known)) {
    state[name] = parts.get(name);
    if (!Object.hasOwn(values, state[name])) throw new Error(`its ${name} is not known`);
  }
  const preset = parts.get("preset");
  state.preset = presets.some((one) => one.name === preset) ? preset : "";
  for (const name of NUMBERS) state[name] = numbers(parts.get(name), 1, name)[0];
  if (!(state.eps > 0)) throw new Error("eps is not above 0");
  if (!(state.speed > 0)) throw new Error("speed is not above 0");
  const { dim, round } = SPACES[state.space];
  state.heads = [];
  for (let h = 1; h <= MOST_HEADS && parts.has(`A${h}`); h++) {
    const pairs = ["A", "Q", "K", "V"].map((name) => [
      name, numbers(parts.get(`${name}${h}`), dim * dim, `${name}${h}`),
    ]);
    state.heads.push(Object.fromEntries(pairs));
  }
  if (state.heads.length === 0) throw new Error("it has no matrices");
  for (const name of ["x", "masses", "mean", "factor"]) state[name] = unpacked(parts, name);
  const n = state.masses.length;
  if (n < 1 || n > MOST_TOKENS) throw new Error(`it has ${n} tokens, not 1 to ${MOST_TOKENS}`);
  if (state.x.length !== n * dim) throw new Error("tokens and masses do not go together");
  if (state.masses.some((mass) => !(mass > 0))) throw new Error("a mass is not above 0");
  if (state.mean.length !== 2 || state.factor.length !== 4) throw new Error("no Gaussian");
  if (state.measure === "gaussian" && (round || VARIANTS[state.variant].onGaussian === null)) {
    throw new Error("a Gaussian has no closed form there");
  }
  if (round) onSphere(state.x, dim);
  return state;
}

function numbers(text, count, name) {
  const found = Float64Array.from((text ?? "").split(","), Number);
  const good = text && found.length === count && found.every((v) => Math.abs(v) <= LARGEST);
  if (!good) throw new Error(`${name} is not ${count === 1 ? "a number" : `${count} numbers`}`);
  return found;
}

export function onSphere(x, dim) {
  for (let i = 0; i < x.length; i += dim) {
    const length = Math.hypot(...x.subarray(i, i + dim));
    if (Math.abs(length - 1) < 1e-14) continue; // a link keeps every bit
    for (let k = i; k < i + dim; k++) x[k] = length > 0 ? x[k] / length : k === i ? 1 : 0;
  }
  return x;
}

function packed(values) {
  const bytes = new Uint8Array(Float64Array.from(values).buffer);
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function unpacked(parts, name) {
  let text;
  try {
    text = atob((parts.get(name) ?? "").replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    throw new Error(`${name} is damaged`);
  }
  if (text.length === 0 || text.length % 8 !== 0) throw new Error(`${name} is not whole`);
  const bytes = Uint8Array.from(text, (one) => one.charCodeAt(0));
  const found = new Float64Array(bytes.buffer);
  if (!found.every((v) => Math.abs(v) <= LARGEST)) throw new Error(`${name} is out of range`);
  return found;
}
