// One experiment: a state, what moves in it, its history, and the measurement under way. Nothing
// here draws.
import { GAP, Clusters, covariance, radius, rank } from "./shape.js";
import { Cloud, Ellipse, affineField, blowUpTime, gaussianOf } from "./motion.js";
import { Field } from "./field.js";
import { History } from "./history.js";
import { Measurement, gaussianStretch } from "./measurement.js";
import { SPACES, attentionOf, copyOf, onSphere } from "./state.js";
import { eigen, spectralNorm } from "./matrix.js";

const RECORDS = 1 / 20; // seconds between records
const AGAIN = 700; // milliseconds between two measurements while a flow runs

export class Session {
  constructor(state) {
    this.running = false;
    this.load(state);
  }

  // Start afresh from a state, which is what rewinding goes back to.
  load(state) {
    this.state = copyOf(state);
    this.origin = copyOf(state);
    this.rebuild();
  }

  get dim() {
    return SPACES[this.state.space].dim;
  }

  get round() {
    return SPACES[this.state.space].round;
  }

  get gaussian() {
    return this.state.measure === "gaussian";
  }

  // After a change of more than the places of tokens.
  rebuild() {
    const { state } = this;
    this.attention = attentionOf(state);
    if (this.gaussian) {
      this.motion = new Ellipse(this.attention);
      this.now = new Float64Array(6);
    } else {
      this.motion = new Cloud(this.attention, state.masses, this.dim, this.round);
      this.now = new Float64Array(state.x.length);
      this.probe = new Field(this.attention, state.masses, this.dim);
      this.clusters = new Clusters(state.masses.length);
    }
    this.growth = this.attention.heads.reduce(
      (sum, head) => sum + spectralNorm(head.V, this.dim), 0,
    );
    this.history = new History(this.now.length);
    this.restart();
  }

  // History starts at the state, `now` becomes what it says.
  restart() {
    const { state } = this;
    if (this.gaussian) this.now.set([...state.mean, ...state.factor]);
    else this.now.set(state.x);
    this.motion.integrator.begin(this.now, state.time);
    this.history.clear();
    this.start = { time: state.time, radius: this.radius() };
    this.predicted = this.gaussian ? blowUpTime(this.attention, this.now) : null;
    this.sigmas = [];
    this.measured = null;
    this.measuring = null;
    this.ended = "";
    this.look();
  }

  // The present state into `state`, so that a link or a change of a matrix keeps it.
  store() {
    if (this.gaussian) {
      this.state.mean.set(this.now.subarray(0, 2));
      this.state.factor.set(this.now.subarray(2));
    } else this.state.x.set(this.now);
  }

  // Bring the quantities and the probe up to the present state, and record it.
  look() {
    const quantities = this.quantities();
    this.history.record(this.state.time, this.now, quantities);
    this.place = this.history.length - 1;
    this.present = quantities;
    this.sinceRecord = 0;
    this.stale = true;
  }

  radius() {
    if (!this.gaussian) return radius(this.now, this.dim);
    const { values } = eigen(gaussianOf(this.now).cov, 2);
    return Math.sqrt(Math.max(values[0], 0));
  }

  quantities() {
    if (this.gaussian) {
      const energy = this.motion.energy(this.now);
      return {
        energy: energy ?? NaN,
        clusters: NaN,
        rank: rank(gaussianOf(this.now).cov, 2),
        radius: this.radius(),
      };
    }
    this.probe.beginAt(this.motion.field);
    this.probe.place(this.now);
    const far = this.radius();
    return {
      energy: this.probe.energy() ?? NaN,
      clusters: this.clusters.count(this.now, this.dim, GAP * far),
      rank: rank(covariance(this.now, this.probe.w, this.dim), this.dim),
      radius: far,
    };
  }

  // Let `seconds` pass, as far as the clock allows.
  tick(seconds, deadline) {
    const { state, motion: { integrator } } = this;
    if (this.place < this.history.length - 1) this.resume();
    const pace = state.speed * (state.growing ? 1 + state.time : 1);
    const wanted = state.time + seconds * pace;
    integrator.reach(wanted, deadline);
    state.time = Math.min(wanted, integrator.known);
    integrator.at(state.time, this.now);
    if (integrator.failed !== "" && state.time >= integrator.known) {
      this.ended = integrator.failed;
      this.running = false;
    }
    this.sinceRecord += seconds;
    const apart = state.time - this.history.times[this.history.length - 1];
    if ((this.sinceRecord >= RECORDS && apart >= this.history.apart) || this.ended) this.look();
  }

  // Use what is left of a frame: the next step of the solver, then the measurement.
  spare(deadline) {
    if (this.running) this.motion.integrator.complete(Math.min(deadline, performance.now() + 5));
    if (performance.now() < deadline) this.measure(deadline);
  }

  measure(deadline) {
    if (this.gaussian) {
      if (this.measured?.time !== this.state.time) {
        const { value, direction } = gaussianStretch(this.attention, this.now);
        this.publish({ time: this.state.time, sigma: value, direction, bounds: [], residual: 0 });
      }
      return;
    }
    if (this.measuring === null) {
      const rested = performance.now() - (this.lastMeasured ?? -Infinity) > AGAIN;
      const due = this.measured === null || this.measured.time !== this.state.time;
      if (!due || (this.running && !rested)) return;
      this.measuring = new Measurement(
        this.attention, this.now, this.state.masses, this.dim, this.state.time,
      );
    }
    if (this.measuring.work(deadline)) {
      this.publish(this.measuring);
      this.measuring = null;
      this.lastMeasured = performance.now();
    }
  }

  publish(measured) {
    this.measured = measured;
    if (this.sigmas.length > 2000) this.sigmas = this.sigmas.filter((_, i) => i % 2 === 0);
    this.sigmas.push([measured.time, measured.sigma]);
    this.sigmas.sort((a, b) => a[0] - b[0]);
  }

  // Show a record of the history.
  show(index) {
    this.running = false;
    this.place = Math.max(0, Math.min(index, this.history.length - 1));
    this.now.set(this.history.state(this.place));
    this.state.time = this.history.times[this.place];
    if (this.place < this.history.length - 1) this.ended = "";
    this.measuring = null;
    this.present = this.quantities();
    this.stale = true;
  }

  // Go on from the record that is shown: what came after it is forgotten.
  resume() {
    this.history.cut(this.place);
    this.sigmas = this.sigmas.filter(([time]) => time <= this.state.time);
    this.motion.integrator.begin(this.now, this.state.time);
    this.ended = "";
  }

  rewind() {
    this.running = false;
    this.state = copyOf(this.origin);
    this.restart();
  }

  // Other matrices, another variant: tokens stay where they are, rewinding leads to where they
  // started.
  change(edit) {
    this.store();
    for (const state of [this.state, this.origin]) {
      edit(state);
      state.time = 0;
      state.preset = "";
    }
    this.rebuild();
  }

  // Other tokens: rewinding leads to these.
  replace(edit) {
    this.store();
    edit(this.state);
    this.state.time = 0;
    this.state.preset = "";
    this.load(this.state);
  }

  // The points that can be moved: tokens, or the mean and the ends of the axes of the ellipse.
  points() {
    if (!this.gaussian) return this.now;
    const { mean, cov } = gaussianOf(this.now);
    const { values, vectors } = eigen(cov, 2);
    const made = new Float64Array(6);
    made.set(mean);
    for (const k of [0, 1]) {
      const half = Math.sqrt(Math.max(values[k], 0));
      made[2 + 2 * k] = mean[0] + half * vectors[k];
      made[3 + 2 * k] = mean[1] + half * vectors[2 + k];
    }
    return made;
  }

  move(index, to) {
    const { dim, state } = this;
    this.store();
    if (!this.gaussian) {
      state.x.set(to, index * dim);
      if (this.round) onSphere(state.x.subarray(index * dim, (index + 1) * dim), dim);
    } else if (index === 0) state.mean.set(to);
    else state.factor.set(this.turnedFactor(index, to));
    state.time = 0;
    state.preset = "";
    this.origin = copyOf(state);
    this.restart();
  }

  // A factor of the covariance whose axis number `index` ends at `to`, the other at a right angle.
  turnedFactor(index, to) {
    const points = this.points();
    const other = 2 * (3 - index);
    const kept = Math.hypot(points[other] - points[0], points[other + 1] - points[1]);
    const [a, b] = [to[0] - points[0], to[1] - points[1]];
    const size = Math.hypot(a, b);
    const [c, s] = size > 0 ? [a / size, b / size] : [1, 0];
    const length = Math.max(size, 1e-3);
    return [length * c, -kept * s, length * s, kept * c];
  }

  // The velocity at m points: of the tokens as last looked at, or of the Gaussian.
  velocity(points, m, out) {
    if (!this.gaussian) {
      this.probe.anywhere(points, m, out);
      return;
    }
    const { matrix: [a, b, c, d], offset } = affineField(this.attention, gaussianOf(this.now));
    for (let i = 0; i < m; i++) {
      out[2 * i] = a * points[2 * i] + b * points[2 * i + 1] + offset[0];
      out[2 * i + 1] = c * points[2 * i] + d * points[2 * i + 1] + offset[1];
    }
  }

  // The proved bound on the radius of the tokens: R_0 e^(ct), c the sum of the norms of the values.
  radiusBound(time) {
    if (this.gaussian || this.round) return NaN;
    return this.start.radius * Math.exp(this.growth * (time - this.start.time));
  }
}
