// The picture: the field, the tokens on top of it, their trails, the ellipse, the most sensitive
// direction.
import { colours, hue, isDark } from "./theme.js";
import { arrow, niceStep, shortNumber } from "./marks.js";
import { Arrows } from "./arrows.js";
import { View } from "./view.js";
import { gaussianOf } from "./motion.js";
import { eigen, symmetricPart } from "./matrix.js";

const TRAIL = 26; // records
const DOT = 5;

export class Stage {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.view = new View();
    this.selected = 0;
    this.marks = false; // whether the chosen token wears a ring
    this.shows = { field: true, trails: true, direction: true, lines: true };
    this.arrows = new Arrows();
    this.refresh();
  }

  // After a change of the colour scheme or of the size.
  refresh() {
    this.colour = colours();
    this.dark = isDark();
    this.ratio = Math.min(globalThis.devicePixelRatio || 1, 2);
    const box = this.canvas.getBoundingClientRect();
    this.view.width = Math.max(box.width, 50);
    this.view.height = Math.max(box.height, 50);
    this.canvas.width = Math.round(this.view.width * this.ratio);
    this.canvas.height = Math.round(this.view.height * this.ratio);
    this.hues = null;
  }

  // A view that holds everything at the start, with room to move.
  fit(session) {
    this.view.reach = session.round ? 1.2 : Math.max(1.6 * session.radius(), 1e-3);
    this.hues = null;
  }

  // The point nearest to the pointer, or -1.
  nearest(session, sx, sy, within = 22) {
    const { dim } = session;
    const { view } = this;
    const points = session.points();
    let best = -1;
    let least = within;
    for (let i = 0; i * dim < points.length; i++) {
      view.see(points, i * dim, dim);
      const away = Math.hypot(view.x - sx, view.y - sy) + (view.depth < 0 ? within / 2 : 0);
      if (away < least) {
        least = away;
        best = i;
      }
    }
    return best;
  }

  draw(session) {
    const { pen, view } = this;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, view.width, view.height);
    const far = session.radius();
    if (!session.round && Number.isFinite(far) && far > 0.95 * view.reach) {
      view.reach = Math.min(far / 0.8, 1e9);
    }
    if (session.round) this.surface(session);
    else this.axes();
    if (this.shows.field) this.arrows.draw(pen, view, session, this.colour.accent);
    if (this.shows.lines) this.isotropicLines(session);
    if (session.gaussian) this.ellipses(session);
    else {
      if (this.shows.trails) this.trails(session);
      this.tokens(session);
    }
    if (this.shows.direction) this.direction(session);
    if (this.marks) this.ring(session);
  }

  surface(session) {
    const { pen, colour, view } = this;
    const [cx, cy, r] = [view.width / 2, view.height / 2, view.scale];
    pen.beginPath();
    pen.arc(cx, cy, r, 0, 2 * Math.PI);
    if (session.dim === 3) {
      const shade = pen.createRadialGradient(cx - r / 3, cy - r / 3, r / 10, cx, cy, r);
      shade.addColorStop(0, colour.paper);
      shade.addColorStop(1, colour.faint);
      pen.fillStyle = shade;
      pen.fill();
    }
    pen.strokeStyle = colour.line;
    pen.lineWidth = 1;
    pen.stroke();
  }

  // Lines of the plane with their numbers.
  axes() {
    const { pen, colour, view } = this;
    const unit = niceStep(view.reach / 2.2);
    pen.lineWidth = 1;
    pen.fillStyle = colour.soft;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "top";
    for (const across of [true, false]) {
      const size = across ? view.width : view.height;
      const most = size / 2 / view.scale / unit;
      pen.textAlign = across ? "center" : "left";
      for (let k = Math.ceil(-most); k <= most; k++) {
        const at = size / 2 + (across ? 1 : -1) * k * unit * view.scale;
        pen.strokeStyle = k === 0 ? colour.line : colour.faint;
        pen.beginPath();
        pen.moveTo(across ? at : 0, across ? 0 : at);
        pen.lineTo(across ? at : view.width, across ? view.height : at);
        pen.stroke();
        if (k === 0) continue;
        const label = shortNumber(k * unit);
        if (across) pen.fillText(label, at, view.height - 15);
        else pen.fillText(label, 4, at + 2);
      }
    }
  }

  // The lines <Ax, x> = 0 of one head in the plane, where covariances may come to rest.
  isotropicLines(session) {
    const { heads, variant } = session.attention;
    if (session.round || heads.length !== 1) return;
    const { pen, colour, view } = this;
    const slope = variant.slope(heads[0], session.attention, 2);
    const { values: [high, low], vectors } = eigen(symmetricPart(slope, 2), 2);
    const rounding = 1e-9 * Math.max(Math.abs(high), Math.abs(low));
    if (rounding === 0 || low > rounding || high < -rounding) return;
    const across = Math.sqrt(Math.max(high, 0));
    const along = Math.sqrt(Math.max(-low, 0));
    pen.strokeStyle = colour.warm;
    pen.setLineDash([6, 6]);
    pen.lineWidth = 1.2;
    for (const sign of across * along > rounding ? [1, -1] : [1]) {
      const d0 = along * vectors[0] + sign * across * vectors[1];
      const d1 = along * vectors[2] + sign * across * vectors[3];
      const far = (3 * view.reach) / Math.hypot(d0, d1);
      pen.beginPath();
      view.look(-far * d0, -far * d1, 0, 2);
      pen.moveTo(view.x, view.y);
      view.look(far * d0, far * d1, 0, 2);
      pen.lineTo(view.x, view.y);
      pen.stroke();
    }
    pen.setLineDash([]);
  }

  trails(session) {
    const { pen, view } = this;
    const { history, dim, place, now } = session;
    const first = Math.max(0, place - TRAIL);
    pen.strokeStyle = this.colour.soft;
    pen.lineWidth = 1;
    for (let r = first; r <= place; r++) {
      const from = history.state(r);
      const to = r < place ? history.state(r + 1) : now;
      pen.globalAlpha = (0.5 * (r - first + 1)) / (place - first + 1);
      pen.beginPath();
      for (let at = 0; at < now.length; at += dim) {
        view.see(from, at, dim);
        if (view.depth < 0) continue;
        pen.moveTo(view.x, view.y);
        view.see(to, at, dim);
        pen.lineTo(view.x, view.y);
      }
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  // Under a mask colours follow the order of the tokens, otherwise where they started.
  tokenHues(session) {
    const { dim, attention, state, origin } = session;
    const n = state.masses.length;
    const kind = `${attention.causal} ${n} ${dim} ${this.dark}`;
    if (this.hues?.kind === kind && this.hues.origin === origin) return this.hues.list;
    const ordered = attention.causal || origin.x.length !== n * dim;
    const list = Array.from({ length: n }, (_, i) => {
      if (ordered) return hue((0.8 * i) / n + 0.55, this.dark);
      const angle = Math.atan2(origin.x[i * dim + 1], origin.x[i * dim]);
      return hue(angle / (2 * Math.PI) + 0.5, this.dark);
    });
    this.hues = { kind, origin, list };
    return list;
  }

  tokens(session) {
    const { pen, view } = this;
    const { dim, now, state: { masses } } = session;
    const hues = this.tokenHues(session);
    const heaviest = Math.max(...masses);
    const dot = masses.length > 150 ? DOT * 0.75 : DOT;
    pen.strokeStyle = this.colour.paper;
    pen.lineWidth = 1.2;
    for (const front of dim === 3 ? [false, true] : [true]) {
      pen.globalAlpha = front ? 1 : 0.25;
      for (let i = 0; i < masses.length; i++) {
        view.see(now, i * dim, dim);
        if (view.depth >= 0 !== front) continue;
        pen.fillStyle = hues[i];
        pen.beginPath();
        const size = Math.max(dot * Math.sqrt(masses[i] / heaviest), 1.5);
        pen.arc(view.x, view.y, size, 0, 2 * Math.PI);
        pen.fill();
        if (front) pen.stroke();
      }
    }
    pen.globalAlpha = 1;
  }

  // The ellipses of one and two standard deviations, those before them fainter.
  ellipses(session) {
    const { pen, colour, view } = this;
    const { history, place } = session;
    const shown = this.shows.trails ? Math.min(place, 8) : 0;
    pen.strokeStyle = colour.soft;
    pen.lineWidth = 1;
    for (let k = 0; k < shown; k++) {
      pen.globalAlpha = 0.2 + (0.4 * k) / shown;
      this.ellipse(history.state(Math.round((k * place) / shown)), 1);
      pen.stroke();
    }
    pen.globalAlpha = 0.14;
    pen.fillStyle = colour.accent;
    for (const deviations of [2, 1]) {
      this.ellipse(session.now, deviations);
      pen.fill();
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = colour.accent;
    pen.lineWidth = 2;
    pen.stroke();
    const points = session.points();
    for (let i = 0; i < 3; i++) {
      view.see(points, 2 * i, 2);
      pen.fillStyle = i === 0 ? colour.ink : colour.paper;
      pen.strokeStyle = colour.ink;
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.arc(view.x, view.y, DOT, 0, 2 * Math.PI);
      pen.fill();
      pen.stroke();
    }
  }

  ellipse(y, deviations) {
    const { pen, view } = this;
    const { mean, cov } = gaussianOf(y);
    const { values, vectors } = eigen(cov, 2);
    view.see(mean, 0, 2);
    const [a, b] = values.map((value) =>
      Math.min(deviations * view.scale * Math.sqrt(Math.max(value, 0)), 1e6),
    );
    pen.beginPath();
    pen.ellipse(view.x, view.y, a, b, -Math.atan2(vectors[2], vectors[0]), 0, 2 * Math.PI);
  }

  // Where the tokens would have to move together for the output to move most.
  direction(session) {
    const { measured, dim, now, gaussian } = session;
    if (measured === null || measured.time !== session.state.time) return;
    const { pen, view } = this;
    const { direction } = measured;
    pen.strokeStyle = this.colour.warm;
    pen.lineWidth = 2;
    pen.beginPath();
    let most = 0;
    for (let at = 0; at < direction.length; at += dim) {
      let square = 0;
      for (let k = at; k < at + dim; k++) square += direction[k] ** 2;
      most = Math.max(most, square);
    }
    const factor = (view.reach * 0.22) / Math.sqrt(most);
    for (let at = 0; at < direction.length; at += dim) {
      view.see(now, at, dim);
      const { x, y, depth } = view;
      const [a, b, c] = [0, 1, 2].map((k) => now[at + k] + factor * direction[at + k]);
      view.look(a, b, c, dim);
      if (depth < 0 || Math.hypot(view.x - x, view.y - y) < 3) continue;
      arrow(pen, x, y, view.x, view.y, 5);
      if (gaussian) arrow(pen, x, y, 2 * x - view.x, 2 * y - view.y, 5);
    }
    pen.stroke();
  }

  // Around the chosen token.
  ring(session) {
    const { dim } = session;
    const points = session.points();
    if (this.selected * dim >= points.length) return;
    this.view.see(points, this.selected * dim, dim);
    this.pen.strokeStyle = this.colour.ink;
    this.pen.lineWidth = 2;
    this.pen.beginPath();
    this.pen.arc(this.view.x, this.view.y, 11, 0, 2 * Math.PI);
    this.pen.stroke();
  }
}
