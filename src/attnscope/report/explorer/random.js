// Seeded draws, so that a link or a preset shows everybody the same.

export function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

export function normals(count, seed) {
  const uniform = generator(seed);
  const made = new Float64Array(count);
  for (let i = 0; i < count; i++) {
    const radius = Math.sqrt(-2 * Math.log(1 - uniform()));
    made[i] = radius * Math.cos(2 * Math.PI * uniform());
  }
  return made;
}
