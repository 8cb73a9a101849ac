// The page: one session, one picture, panels around it, sixty frames a second while anything moves.
import { AttentionPanel } from "./attention_panel.js";
import { TokenPanel } from "./token_panel.js";
import { Hand } from "./hand.js";
import { Readings } from "./readings.js";
import { Session } from "./session.js";
import { Stage } from "./stage.js";
import { byId, element, options } from "./element.js";
import { decode, encode, stateOf } from "./state.js";
import { choose, isDark, recall } from "./theme.js";
import { shortNumber } from "./marks.js";

const FRAME = 1 / 60;
const BUDGET = 7; // milliseconds of a frame for computing; the rest is for drawing
const SPEEDS = [0.1, 0.3, 1, 3, 10, 100];
const CHARTS_EVERY = 6; // frames

class App {
  constructor(presets, first) {
    this.presets = presets;
    this.first = presets.find((one) => one.name === first);
    const { state, problem } = decode(location.hash, presets, this.first);
    this.session = new Session(state);
    this.stage = new Stage(byId("stage"));
    this.attention = new AttentionPanel(this);
    this.tokens = new TokenPanel(this);
    this.readings = new Readings(this);
    this.hand = new Hand(this);
    this.frames = 0;
    this.bindTime();
    this.bindPage();
    this.stage.fit(this.session);
    this.update();
    this.notice(problem);
    requestAnimationFrame((now) => this.frame(now));
  }

  bindTime() {
    for (const name of ["rewind", "back", "step"]) {
      byId(name).addEventListener("click", () => this[name]());
    }
    byId("run").addEventListener("click", () => this.toggle());
    byId("scrub").addEventListener("input", (event) => {
      this.session.show(Number(event.target.value));
      this.update();
    });
    options(byId("speed"), SPEEDS.map((speed) => [speed, `${speed} a second`]));
    byId("speed").addEventListener("change", (event) => {
      for (const state of [this.session.state, this.session.origin]) {
        state.speed = Number(event.target.value);
      }
    });
    byId("growing").addEventListener("change", (event) => {
      for (const state of [this.session.state, this.session.origin]) {
        state.growing = event.target.checked;
      }
    });
  }

  bindPage() {
    const groups = Map.groupBy
      ? Map.groupBy(this.presets, (one) => one.group)
      : new Map([["", this.presets]]);
    byId("preset").append(
      element("option", { value: "", textContent: "your own", hidden: true }),
      ...[...groups].map(([label, list]) =>
        element("optgroup", { label }, ...list.map(({ name, title }) =>
          element("option", { value: name, textContent: title }),
        )),
      ),
    );
    byId("preset").addEventListener("change", (event) => this.begin(event.target.value));
    byId("earlier").addEventListener("click", () => this.neighbour(-1));
    byId("later").addEventListener("click", () => this.neighbour(1));
    byId("closer").addEventListener("click", () => this.zoom(0.8));
    byId("farther").addEventListener("click", () => this.zoom(1.25));
    byId("fit").addEventListener("click", () => this.fit());
    for (const box of document.querySelectorAll("[data-shows]")) {
      box.addEventListener("change", () => {
        this.stage.shows[box.dataset.shows] = box.checked;
        this.dirty = true;
      });
    }
    byId("theme").addEventListener("click", () => {
      choose(isDark() ? "light" : "dark");
      this.restyle();
    });
    byId("link").addEventListener("click", () => this.link());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.restyle());
    new ResizeObserver(() => this.restyle()).observe(byId("stage"));
    addEventListener("hashchange", () => this.open());
  }

  // One frame: let time pass, draw, use what is left.
  frame(now) {
    const began = performance.now();
    const { session } = this;
    const passed = Math.min((now - (this.lastFrame ?? now - 1000 * FRAME)) / 1000, 3 * FRAME);
    this.lastFrame = now;
    if (session.running) {
      session.tick(Math.max(passed, 0), began + BUDGET);
      this.dirty = true;
      if (session.ended !== "") this.update();
    }
    if (this.dirty) this.draw();
    const before = session.measured;
    session.spare(began + BUDGET);
    if (session.measured !== before) {
      this.readings.measured();
      this.readings.draw();
      this.dirty = true;
    }
    this.frames++;
    requestAnimationFrame((next) => this.frame(next));
  }

  draw() {
    const { session, stage } = this;
    stage.draw(session);
    this.dirty = false;
    byId("clock").textContent = `t = ${shortNumber(session.state.time)}`;
    byId("scrub").max = session.history.length - 1;
    byId("scrub").value = session.place;
    if (session.running && this.frames % CHARTS_EVERY === 0) this.readings.draw();
  }

  // After anything that a panel shows has changed.
  update() {
    const { session } = this;
    this.attention.update();
    this.tokens.update();
    this.readings.update();
    const { state } = session;
    byId("preset").value = state.preset;
    byId("growing").checked = state.growing;
    if (!SPEEDS.includes(state.speed)) {
      SPEEDS.push(state.speed);
      byId("speed").append(
        element("option", { value: state.speed, textContent: `${state.speed} a second` }),
      );
    }
    byId("speed").value = state.speed;
    this.runButton();
    this.about();
    byId("status").textContent = this.status();
    byId("keys").textContent = this.keys();
    byId("theme").textContent = isDark() ? "Light" : "Dark";
    byId("theme").ariaPressed = String(isDark());
    this.dirty = true;
  }

  runButton() {
    const { running, ended } = this.session;
    const path = byId("run").querySelector("path");
    path.setAttribute("d", running ? "M4 3h4v14H4zM12 3h4v14h-4z" : "M5 3l12 7-12 7z");
    byId("run").ariaLabel = running ? "Pause" : "Run";
    byId("run").disabled = ended !== "";
  }

  about() {
    const preset = this.presets.find((one) => one.name === this.session.state.preset);
    const words = preset
      ? [preset.sees, preset.says]
      : ["Your own choice. Everything below can be changed; the link keeps it."];
    // nothing may shift under the pointer that drags a token
    const room = byId("about");
    room.style.minHeight = preset ? "" : `${room.offsetHeight}px`;
    room.replaceChildren(...words.map((text) => element("p", { textContent: text })));
    const at = this.presets.indexOf(preset);
    byId("earlier").disabled = at <= 0;
    byId("later").disabled = at === this.presets.length - 1;
  }

  status() {
    const { ended, predicted, state } = this.session;
    const theory =
      predicted === null
        ? ""
        : predicted === Infinity
          ? "Theorem: with V = I this Gaussian never blows up."
          : `Theorem: with V = I this Gaussian blows up at t = ${predicted.toPrecision(6)}.`;
    if (ended === "blew up") {
      return `Blew up: the solver met a pole at t = ${state.time.toPrecision(6)}. ${theory}`;
    }
    if (ended !== "") return `Stopped at t = ${shortNumber(state.time)}: it ${ended}.`;
    return theory;
  }

  keys() {
    const { gaussian, dim } = this.session;
    if (gaussian) {
      return "Drag the mean or the ends of the axes. With the keyboard: [ and ] choose one, arrows "
        + "move it, space runs, . and , step.";
    }
    const [beside, turn] =
      dim === 3
        ? ["; drag beside them to turn the sphere", ", shift with arrows turns the sphere"]
        : ["", ""];
    return `Drag tokens; double-click adds one${beside}. With the keyboard: [ and ] choose a token, `
      + `arrows move it, n adds, Delete removes, space runs, . and , step${turn}.`;
  }

  toggle() {
    if (this.session.ended !== "") return;
    this.session.running = !this.session.running;
    this.lastFrame = undefined;
    this.update();
  }

  step() {
    const { session } = this;
    session.running = false;
    if (session.place < session.history.length - 1) session.show(session.place + 1);
    else if (session.ended === "") {
      session.tick(6 * FRAME, performance.now() + 500);
      if (session.place === session.history.length - 1 && session.sinceRecord > 0) session.look();
    }
    this.update();
  }

  back() {
    this.session.show(this.session.place - 1);
    this.update();
  }

  rewind() {
    this.session.rewind();
    this.update();
  }

  change(edit) {
    this.session.change(edit);
    this.update();
  }

  replace(edit) {
    this.session.replace(edit);
    this.choose(Math.min(this.stage.selected, this.session.points().length / this.session.dim - 1));
    this.update();
  }

  move(index, to) {
    this.session.move(index, to);
    this.update();
  }

  choose(index) {
    const count = this.session.points().length / this.session.dim;
    this.stage.selected = ((Math.round(index) || 0) + count) % count;
    this.tokens.update();
    this.dirty = true;
  }

  begin(name) {
    const preset = this.presets.find((one) => one.name === name);
    this.session.running = false;
    this.session.load(stateOf(preset));
    this.notice("");
    this.choose(0);
    this.fit();
    history.replaceState(null, "", `#preset=${name}`);
  }

  neighbour(way) {
    const at = this.presets.findIndex((one) => one.name === this.session.state.preset);
    const next = this.presets[at < 0 ? 0 : at + way];
    if (next) this.begin(next.name);
  }

  zoom(factor) {
    if (this.session.round) return;
    this.stage.view.zoom(factor);
    this.dirty = true;
  }

  fit() {
    this.stage.fit(this.session);
    this.update();
  }

  restyle() {
    this.stage.refresh();
    this.update();
  }

  // Read the link in the address bar.
  open() {
    const { state, problem } = decode(location.hash, this.presets, this.first);
    this.session.running = false;
    this.session.load(state);
    this.choose(0);
    this.fit();
    this.notice(problem);
  }

  async link() {
    this.session.store();
    history.replaceState(null, "", `#${encode(this.session.state)}`);
    try {
      await navigator.clipboard.writeText(location.href);
      this.say("Link copied: it restores what is shown.");
    } catch {
      this.say("The link is in the address bar: it restores what is shown.");
    }
  }

  say(sentence) {
    byId("status").textContent = sentence;
  }

  notice(sentence) {
    byId("notice").textContent = sentence;
    byId("notice").hidden = sentence === "";
  }
}

recall();
const { presets, first } = JSON.parse(byId("presets").textContent);
export const app = new App(presets, first);
