// Small things that every picture needs.

// Adds an arrow from a to b to the path of the pen.
export function arrow(pen, ax, ay, bx, by, head) {
  pen.moveTo(ax, ay);
  pen.lineTo(bx, by);
  const size = Math.hypot(bx - ax, by - ay);
  if (size < 2) return;
  const c = ((bx - ax) / size) * Math.min(head, size / 2);
  const s = ((by - ay) / size) * Math.min(head, size / 2);
  pen.moveTo(bx - c - 0.7 * s, by - s + 0.7 * c);
  pen.lineTo(bx, by);
  pen.lineTo(bx - c + 0.7 * s, by - s - 0.7 * c);
}

// A step of 1, 2 or 5 times a power of ten.
export function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  const share = rough / power;
  return power * (share < 1.5 ? 1 : share < 3.5 ? 2 : share < 7.5 ? 5 : 10);
}

export function shortNumber(value) {
  if (!Number.isFinite(value)) return value === Infinity ? "∞" : "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(size >= 1000 ? 4 : 3)));
}
