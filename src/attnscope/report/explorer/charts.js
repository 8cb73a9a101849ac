// Quantities against time, one small picture each; the number beside it is the present one.
import { colours } from "./theme.js";
import { niceStep, shortNumber } from "./marks.js";

const LEFT = 40;
const BOTTOM = 16;
const WIDE = 100; // positive values that differ by more are drawn on a logarithmic scale

export class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d");
    this.refresh();
  }

  refresh() {
    this.colour = colours();
    this.ratio = Math.min(globalThis.devicePixelRatio || 1, 2);
    const box = this.canvas.getBoundingClientRect();
    this.width = Math.max(box.width, 40);
    this.height = Math.max(box.height, 40);
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
  }

  // value(i) at time(i) for i < count; `ceiling(t)`, if given, is drawn dashed; `at` marks now.
  draw(count, time, value, at, { steps = false, ceiling = null } = {}) {
    const { pen } = this;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    let low = Infinity;
    let high = -Infinity;
    for (let i = 0; i < count; i++) {
      const v = value(i);
      if (!Number.isFinite(v)) continue;
      low = Math.min(low, v);
      high = Math.max(high, v);
    }
    if (!(high >= low)) return;
    const first = time(0);
    const end = Math.max(time(count - 1), at);
    const last = end > first ? end : first + 1;
    this.logarithmic = low > 0 && high / low > WIDE && !steps;
    this.range(low, high, steps);
    const sx = (t) => LEFT + ((t - first) / (last - first)) * (this.width - LEFT - 8);
    this.frame(first, last, sx);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, this.width - LEFT, this.height - BOTTOM + 1);
    pen.clip();
    if (ceiling !== null) this.ceiling(ceiling, first, last, sx);
    this.line(count, time, value, sx, steps);
    pen.restore();
    this.now(count, time, value, at, sx);
  }

  range(low, high, steps) {
    const scaled = (v) => (this.logarithmic ? Math.log10(v) : v);
    [this.low, this.high] = [scaled(low), scaled(high)];
    const room = Math.max((this.high - this.low) * 0.12, Math.abs(this.high) * 0.02, 1e-9);
    this.low -= room;
    this.high += room;
    if (steps) [this.low, this.high] = [0, high + Math.max(0.12 * high, 0.5)];
    const tall = this.height - BOTTOM - 6;
    this.sy = (v) => 6 + ((this.high - scaled(v)) / (this.high - this.low)) * tall;
  }

  frame(first, last, sx) {
    const { pen, colour, height } = this;
    pen.font = "10px system-ui, sans-serif";
    pen.fillStyle = colour.soft;
    pen.lineWidth = 1;
    const unit = this.logarithmic ? 1 : niceStep((this.high - this.low) / 2.5);
    const rough = this.logarithmic ? Math.max(1, Math.ceil((this.high - this.low) / 3)) : unit;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (let k = Math.ceil(this.low / rough); k * rough <= this.high; k++) {
      const v = this.logarithmic ? 10 ** (k * rough) : k * rough;
      const y = this.sy(v);
      pen.strokeStyle = colour.faint;
      pen.beginPath();
      pen.moveTo(LEFT, y);
      pen.lineTo(this.width, y);
      pen.stroke();
      pen.fillText(shortNumber(v), LEFT - 5, y);
    }
    pen.textBaseline = "alphabetic";
    pen.textAlign = "center";
    const step = niceStep((last - first) / 3);
    for (let k = Math.ceil(first / step); k * step <= last; k++) {
      const x = sx(k * step);
      if (x < this.width - 12) pen.fillText(shortNumber(k * step), x, height - 3);
    }
  }

  ceiling(bound, first, last, sx) {
    const { pen, colour } = this;
    pen.strokeStyle = colour.warm;
    pen.setLineDash([4, 4]);
    pen.lineWidth = 1.2;
    pen.beginPath();
    for (let k = 0; k <= 40; k++) {
      const t = first + ((last - first) * k) / 40;
      const y = Math.max(this.sy(bound(t)), -50);
      if (k === 0) pen.moveTo(sx(t), y);
      else pen.lineTo(sx(t), y);
    }
    pen.stroke();
    pen.setLineDash([]);
  }

  line(count, time, value, sx, steps) {
    const { pen, colour } = this;
    pen.strokeStyle = colour.accent;
    pen.lineWidth = 1.8;
    pen.lineJoin = "round";
    pen.beginPath();
    let begun = false;
    for (let i = 0; i < count; i++) {
      const v = value(i);
      if (!Number.isFinite(v)) continue;
      const [x, y] = [sx(time(i)), this.sy(v)];
      if (!begun) pen.moveTo(x, y);
      else {
        if (steps) pen.lineTo(x, this.before);
        pen.lineTo(x, y);
      }
      this.before = y;
      begun = true;
    }
    pen.stroke();
  }

  // A dot at the record nearest to the time that is shown.
  now(count, time, value, at, sx) {
    let best = count - 1;
    for (let i = 0; i < count; i++) {
      if (Math.abs(time(i) - at) < Math.abs(time(best) - at)) best = i;
    }
    const v = value(best);
    if (!Number.isFinite(v)) return;
    this.pen.fillStyle = this.colour.accent;
    this.pen.beginPath();
    this.pen.arc(sx(time(best)), this.sy(v), 3.5, 0, 2 * Math.PI);
    this.pen.fill();
  }
}

// The covariance in the disc: ((s11 - s22)/tr, 2 s12/tr), rank one on the circle.
export function drawDisc(chart, count, state, place) {
  const { pen, colour, width, height } = chart;
  pen.setTransform(chart.ratio, 0, 0, chart.ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const r = Math.min(width, height) / 2 - 8;
  const [cx, cy] = [width / 2, height / 2];
  pen.strokeStyle = colour.line;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.arc(cx, cy, r, 0, 2 * Math.PI);
  pen.stroke();
  const spot = (y) => {
    const s11 = y[2] * y[2] + y[3] * y[3];
    const s12 = y[2] * y[4] + y[3] * y[5];
    const s22 = y[4] * y[4] + y[5] * y[5];
    const trace = s11 + s22;
    return [cx + (r * (s11 - s22)) / trace, cy - (r * 2 * s12) / trace];
  };
  pen.strokeStyle = colour.accent;
  pen.lineWidth = 1.8;
  pen.beginPath();
  for (let i = 0; i < count; i++) pen.lineTo(...spot(state(i)));
  pen.stroke();
  pen.fillStyle = colour.accent;
  pen.beginPath();
  pen.arc(...spot(state(place)), 3.5, 0, 2 * Math.PI);
  pen.fill();
}
