// The field under the tokens, as arrows on a grid, around the circle or on the sphere. Lengths grow
// with the root of the speed, the longest is the fastest.
import { arrow } from "./marks.js";

const GRID = 22; // arrows along a side
const AROUND = 72;
const ON_SPHERE = 420;
const LEVELS = 3; // of strength

export class Arrows {
  constructor() {
    this.kind = "";
  }

  // Places of the arrows in this view, and room for their velocities.
  arrange(view, dim, round) {
    const kind = `${dim} ${round} ${view.reach} ${view.width} ${view.height}`;
    if (this.kind === kind) return false;
    this.kind = kind;
    const made = [];
    if (!round) {
      const gap = Math.max(view.width, view.height) / GRID;
      for (let sx = gap / 2; sx < view.width; sx += gap)
        for (let sy = gap / 2; sy < view.height; sy += gap) made.push(...view.pointAt(sx, sy, 2));
    } else if (dim === 2) {
      for (let k = 0; k < AROUND; k++) {
        const angle = (2 * Math.PI * k) / AROUND;
        made.push(Math.cos(angle), Math.sin(angle));
      }
    } else {
      for (let k = 0; k < ON_SPHERE; k++) {
        const height = 1 - (2 * k + 1) / ON_SPHERE;
        const angle = k * Math.PI * (3 - Math.sqrt(5)); // the golden angle spreads them evenly
        const r = Math.sqrt(1 - height * height);
        made.push(r * Math.cos(angle), r * Math.sin(angle), height);
      }
    }
    this.points = Float64Array.from(made);
    this.out = new Float64Array(made.length);
    this.speeds = new Float64Array(made.length / dim);
    return true;
  }

  update(session) {
    const { points, out, speeds } = this;
    const { dim, round } = session;
    session.velocity(points, speeds.length, out);
    this.most = 0;
    for (let i = 0; i < speeds.length; i++) {
      const at = i * dim;
      let along = 0;
      for (let k = at; k < at + dim; k++) along += points[k] * out[k];
      let square = 0;
      for (let k = at; k < at + dim; k++) {
        if (round) out[k] -= along * points[k]; // what is tangent
        square += out[k] * out[k];
      }
      speeds[i] = Math.sqrt(square);
      this.most = Math.max(this.most, speeds[i]);
    }
    session.stale = false;
  }

  draw(pen, view, session, colour) {
    const { dim, round } = session;
    if (this.arrange(view, dim, round) || session.stale) this.update(session);
    const { points, out, speeds, most } = this;
    const longest = round ? 0.1 : (1.7 * view.reach) / GRID;
    pen.strokeStyle = colour;
    pen.lineCap = "round";
    for (let level = 0; level < LEVELS; level++) {
      pen.globalAlpha = 0.22 + 0.16 * level;
      pen.lineWidth = 1 + 0.25 * level;
      pen.beginPath();
      for (let i = 0; i < speeds.length; i++) {
        const share = Math.sqrt(speeds[i] / most);
        if (!(share > 0) || Math.min(LEVELS - 1, Math.floor(LEVELS * share)) !== level) continue;
        const at = i * dim;
        view.see(points, at, dim);
        if (view.depth < 0.05) continue;
        const { x, y } = view;
        const factor = (longest * share) / speeds[i];
        const third = dim === 3 ? points[at + 2] + factor * out[at + 2] : 0;
        view.look(points[at] + factor * out[at], points[at + 1] + factor * out[at + 1], third, dim);
        arrow(pen, x, y, view.x, view.y, 3.2);
      }
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }
}
