// Where tokens live, how many there are, and the one that is chosen.
import { LAWS, drawn, factorOf, fitGaussian, moveTo, sampleGaussian } from "./tokens.js";
import { MOST_TOKENS, SPACES, onSphere } from "./state.js";
import { byId, check, choices, element, options } from "./element.js";
import { gaussianOf } from "./motion.js";
import { shortNumber } from "./marks.js";

const AXES = ["x", "y", "z"];

export class TokenPanel {
  constructor(app) {
    this.app = app;
    this.seed = 100;
    const spaces = Object.entries(SPACES).map(([name, { title }]) => [name, title]);
    choices(byId("space"), "space", spaces, (space) => this.travel(space));
    const kinds = [["tokens", "tokens"], ["gaussian", "a Gaussian"]];
    choices(byId("measure"), "measure", kinds, (measure) => this.become(measure));
    options(byId("law"), LAWS.map((law) => [law, law]));
    byId("law").addEventListener("change", () => this.redraw());
    byId("redraw").addEventListener("click", () => this.redraw());
    byId("count").addEventListener("change", () => this.redraw());
    byId("chosen").addEventListener("change", (event) => app.choose(Number(event.target.value) - 1));
    byId("mass").addEventListener("input", (event) => this.weigh(10 ** Number(event.target.value)));
    byId("add").addEventListener("click", () => this.add());
    byId("remove").addEventListener("click", () => this.remove());
    this.ellipse();
  }

  travel(space) {
    const { gaussian } = this.app.session;
    this.app.replace((state) => {
      if (gaussian && space !== "plane") sampleGaussian(state, this.seed++);
      moveTo(state, space);
    });
    this.app.fit();
  }

  become(measure) {
    this.app.replace((state) => {
      if (measure === state.measure) return;
      state.measure = measure;
      if (measure === "gaussian") fitGaussian(state);
      else sampleGaussian(state, this.seed++);
    });
    this.app.choose(0);
  }

  redraw() {
    const asked = Math.round(Number(byId("count").value));
    const n = Math.min(Math.max(Number.isFinite(asked) ? asked : 1, 1), MOST_TOKENS);
    this.app.replace((state) => {
      state.x = drawn(byId("law").value, n, state.space, this.seed++);
      state.masses = new Float64Array(n).fill(1);
    });
    this.app.fit();
  }

  weigh(mass) {
    const { selected } = this.app.stage;
    this.app.change((state) => { if (selected < state.masses.length) state.masses[selected] = mass; });
  }

  // A new token at a place, or beside the chosen one.
  add(place = null) {
    const { session, stage } = this.app;
    const { dim, round } = session;
    if (session.gaussian || session.state.masses.length >= MOST_TOKENS) return;
    const from = session.now.subarray(stage.selected * dim, (stage.selected + 1) * dim);
    const near = Float64Array.from(place ?? from.map((value) => value + 0.15 * stage.view.reach));
    if (round) onSphere(near, dim);
    this.app.replace((state) => {
      state.x = Float64Array.of(...state.x, ...near);
      state.masses = Float64Array.of(...state.masses, 1);
    });
    this.app.choose(session.state.masses.length - 1);
  }

  remove() {
    const { session, stage: { selected } } = this.app;
    const { dim } = session;
    if (session.gaussian || session.state.masses.length < 2) return;
    this.app.replace((state) => {
      state.x = state.x.filter((_, k) => Math.floor(k / dim) !== selected);
      state.masses = state.masses.filter((_, k) => k !== selected);
    });
    this.app.choose(Math.max(0, selected - 1));
  }

  // Fields for the mean and the covariance.
  ellipse() {
    const names = [["mean x", 0], ["mean y", 1], ["S₁₁", 2], ["S₁₂", 3], ["S₂₂", 4]];
    this.entries = names.map(([label]) => {
      const input = element("input", { type: "number", step: 0.1 });
      input.addEventListener("change", () => this.setEllipse());
      byId("ellipse-tools").append(element("label", {}, `${label} `, input));
      return input;
    });
  }

  setEllipse() {
    const [m0, m1, s11, s12, s22] = this.entries.map((input) => Number(input.value));
    const factor = factorOf(s11, s12, s22);
    if (factor === null || ![m0, m1].every(Number.isFinite)) {
      this.app.say("A covariance needs S₁₁ and S₂₂ above 0 and S₁₂² at most their product.");
      this.app.update();
      return;
    }
    this.app.replace((state) => {
      state.mean.set([m0, m1]);
      state.factor.set(factor);
    });
  }

  update() {
    const { session, stage } = this.app;
    const { state, dim, gaussian } = session;
    check(byId("space"), state.space);
    check(byId("measure"), state.measure);
    const closed = session.attention.variant.onGaussian !== null && !session.round;
    byId("measure").querySelector("input[value=gaussian]").disabled = !closed;
    byId("token-tools").hidden = gaussian;
    byId("ellipse-tools").hidden = !gaussian;
    if (gaussian) this.showEllipse();
    else this.showToken(state, dim, stage.selected);
  }

  showEllipse() {
    const { mean, cov } = gaussianOf(this.app.session.now);
    [mean[0], mean[1], cov[0], cov[1], cov[3]].forEach((value, k) => {
      const input = this.entries[k];
      if (document.activeElement !== input) input.value = Number(value.toPrecision(4));
    });
  }

  showToken(state, dim, selected) {
    const n = state.masses.length;
    if (document.activeElement !== byId("count")) byId("count").value = n;
    byId("remove").disabled = n < 2;
    byId("add").disabled = n >= MOST_TOKENS;
    byId("chosen").max = n;
    if (document.activeElement !== byId("chosen")) byId("chosen").value = selected + 1;
    const mass = state.masses[selected] ?? 1;
    byId("mass").value = Math.log10(mass);
    byId("mass-value").textContent = shortNumber(mass);
    const room = byId("coordinates");
    if (room.children.length !== dim) {
      room.replaceChildren(...AXES.slice(0, dim).map((axis, k) => this.coordinate(axis, k)));
    }
    [...room.querySelectorAll("input")].forEach((input, k) => {
      const value = this.app.session.now[selected * dim + k];
      if (document.activeElement !== input) input.value = Number(value.toFixed(4));
    });
  }

  coordinate(axis, k) {
    const input = element("input", { type: "number", step: 0.1 });
    input.addEventListener("change", () => {
      const { session, stage: { selected } } = this.app;
      const { dim } = session;
      const to = session.now.slice(selected * dim, (selected + 1) * dim);
      to[k] = Number(input.value);
      if (to.every(Number.isFinite)) this.app.move(selected, to);
    });
    return element("label", {}, `${axis} `, input);
  }
}
