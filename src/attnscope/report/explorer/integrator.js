// Dormand and Prince's pair of orders 5 and 4 with steps that adapt, on one flat array. Steps are
// as long as the tolerance allows, whatever is shown meanwhile: states inside a step come from its
// interpolant of order 4. The work on the next step can be interrupted after every stage, so that
// it spreads over the frames in which the last one is shown.

const A = [
  [],
  [1 / 5],
  [3 / 40, 9 / 40],
  [44 / 45, -56 / 15, 32 / 9],
  [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
  [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
  [35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
];
const ERROR = [
  71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40,
];
const DENSE = [
  -12715105075 / 11282082432, 0, 87487479700 / 32700410799, -10690763975 / 1880347072,
  701980252875 / 199316789632, -1453857185 / 822651844, 69997945 / 29380423,
];
const SHORTEST = 1e-11; // of a step, relative to the time so far: the solution has a pole there
const LARGEST = 1e12;

class Step {
  constructor(size) {
    this.time = 0;
    this.length = 0;
    this.start = new Float64Array(size);
    this.end = new Float64Array(size);
    this.stages = Array.from({ length: 7 }, () => new Float64Array(size));
  }
}

export class Integrator {
  // velocity(y, out) fills out; settle(y), if given, puts a state back onto its surface
  constructor(velocity, size, settle = null, rtol = 1e-8, atol = 1e-10) {
    Object.assign(this, { velocity, size, settle, rtol, atol });
    this.shown = new Step(size);
    this.next = new Step(size);
    this.begin(new Float64Array(size), 0);
  }

  // From a new state, at this time.
  begin(y, time) {
    const { shown } = this;
    shown.time = time;
    shown.length = 0;
    shown.start.set(y);
    shown.end.set(y);
    this.length = 0;
    this.stage = 0;
    this.failed = "";
  }

  // The time up to which states are known.
  get known() {
    return this.shown.time + this.shown.length;
  }

  // Make the states up to `time` known, as far as the clock allows and the solution exists.
  reach(time, deadline = Infinity) {
    while (this.known < time && this.failed === "") {
      if (!this.complete(deadline)) return false;
      [this.shown, this.next] = [this.next, this.shown];
      this.stage = 0;
    }
    return this.known >= time;
  }

  // Work on the next step ahead of time; whether it is complete.
  complete(deadline) {
    while (this.stage < 8 && this.failed === "") {
      this.advanceStage();
      if (this.stage < 8 && performance.now() > deadline) return false;
    }
    return this.failed === "";
  }

  advanceStage() {
    const { next, size } = this;
    const { stages, start, end } = next;
    if (this.stage === 0) {
      next.time = this.known;
      start.set(this.shown.end);
      if (this.length === 0) this.velocity(start, stages[0]);
      else stages[0].set(this.shown.stages[6]);
      if (this.length === 0) this.length = this.first(start, stages[0]);
    } else if (this.stage < 7) {
      const row = A[this.stage];
      end.set(start);
      for (let r = 0; r < this.stage; r++) {
        const factor = this.length * row[r];
        const stage = stages[r];
        if (factor !== 0) for (let i = 0; i < size; i++) end[i] += factor * stage[i];
      }
      this.velocity(end, stages[this.stage]);
    } else {
      this.judge();
      return;
    }
    this.stage++;
  }

  // Take the step, or try a shorter one.
  judge() {
    const { next, size } = this;
    const { stages, start, end } = next;
    let sum = 0;
    let top = 0;
    for (let i = 0; i < size; i++) {
      let off = 0;
      for (let s = 0; s < 7; s++) off += ERROR[s] * stages[s][i];
      const scale = this.atol + this.rtol * Math.max(Math.abs(start[i]), Math.abs(end[i]));
      sum += ((this.length * off) / scale) ** 2;
      top = Math.max(top, Math.abs(end[i]));
    }
    const error = Math.sqrt(sum / size);
    const factor = error > 0 ? 0.9 * error ** -0.2 : 5;
    if (error <= 1) {
      if (this.settle !== null) this.settle(end);
      next.length = this.length;
      this.length *= Math.min(5, Math.max(0.2, factor));
      this.stage = 8;
    } else {
      this.length *= Number.isFinite(error) ? Math.max(0.2, Math.min(0.9, factor)) : 0.1;
      this.stage = 1;
    }
    if (!(this.length > SHORTEST * Math.max(next.time, 1e-3))) this.failed = "blew up";
    else if (top > LARGEST) this.failed = "grew beyond 10^12";
  }

  // A first step that moves the state by about a hundredth of its size.
  first(y, velocity) {
    let size = 0;
    let speed = 0;
    for (let i = 0; i < this.size; i++) {
      size = Math.max(size, Math.abs(y[i]));
      speed = Math.max(speed, Math.abs(velocity[i]));
    }
    return speed > 0 ? (0.01 * Math.max(size, 1e-6)) / speed : 1;
  }

  // The state at a known time.
  at(time, out) {
    const { shown: { start, end, stages, length, time: began }, size } = this;
    if (length === 0) {
      out.set(end);
      return;
    }
    const theta = (time - began) / length;
    const left = 1 - theta;
    for (let i = 0; i < size; i++) {
      const rise = end[i] - start[i];
      const bend = length * stages[0][i] - rise;
      const twist = rise - length * stages[6][i] - bend;
      let last = 0;
      for (let s = 0; s < 7; s++) last += DENSE[s] * stages[s][i];
      out[i] =
        start[i] + theta * (rise + left * (bend + theta * (twist + left * length * last)));
    }
    if (this.settle !== null) this.settle(out);
  }
}
