// What has happened so far: states and quantities at recorded times. When it is full every second
// record goes, so that any length of time fits and nothing is allocated while a flow runs.

export const QUANTITIES = ["energy", "clusters", "rank", "radius"];
const CAPACITY = 1200;

export class History {
  constructor(size) {
    this.size = size;
    this.length = 0;
    this.apart = 0; // least time between records; doubles when every second one goes
    this.times = new Float64Array(CAPACITY);
    this.states = new Float64Array(CAPACITY * size);
    this.series = Object.fromEntries(
      QUANTITIES.map((name) => [name, new Float64Array(CAPACITY)]),
    );
  }

  clear() {
    this.length = 0;
    this.apart = 0;
  }

  record(time, state, quantities) {
    if (this.length === CAPACITY) this.thin();
    const { length } = this;
    this.times[length] = time;
    this.states.set(state, length * this.size);
    for (const name of QUANTITIES) this.series[name][length] = quantities[name];
    this.length++;
  }

  thin() {
    const { size, times, states } = this;
    const half = CAPACITY / 2;
    for (let i = 0; i < half; i++) {
      times[i] = times[2 * i];
      states.copyWithin(i * size, 2 * i * size, (2 * i + 1) * size);
      for (const name of QUANTITIES) this.series[name][i] = this.series[name][2 * i];
    }
    this.length = half;
    this.apart = times[half - 1] / half;
  }

  state(index) {
    return this.states.subarray(index * this.size, (index + 1) * this.size);
  }

  // Forget what comes after this record.
  cut(index) {
    this.length = Math.min(this.length, index + 1);
  }
}
