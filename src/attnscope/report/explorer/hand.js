// The picture under the pointer and the keyboard.
import { byId } from "./element.js";

const TURN = 0.008; // radians for a pixel

export class Hand {
  constructor(app) {
    this.app = app;
    const canvas = byId("stage");
    this.canvas = canvas;
    this.held = null;
    canvas.addEventListener("pointerdown", (event) => this.take(event));
    canvas.addEventListener("pointermove", (event) => this.drag(event));
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, () => { this.held = null; });
    }
    canvas.addEventListener("dblclick", (event) => {
      const { x, y } = this.place(event);
      app.tokens.add(app.stage.view.pointAt(x, y, app.session.dim));
    });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    for (const [name, marks] of [["focus", true], ["blur", false]]) {
      canvas.addEventListener(name, () => {
        app.stage.marks = marks;
        app.dirty = true;
      });
    }
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  }

  take(event) {
    const { app } = this;
    const { x, y } = this.place(event);
    const token = app.stage.nearest(app.session, x, y);
    this.canvas.setPointerCapture(event.pointerId);
    this.held = { token, x, y };
    if (token >= 0) app.choose(token);
  }

  drag(event) {
    if (this.held === null) return;
    const { app, held } = this;
    const { x, y } = this.place(event);
    const { view } = app.stage;
    if (held.token >= 0) app.move(held.token, view.pointAt(x, y, app.session.dim));
    else if (app.session.dim === 3) {
      view.turn.yaw += (x - held.x) * TURN;
      view.turn.pitch = Math.max(-1.5, Math.min(1.5, view.turn.pitch + (y - held.y) * TURN));
      app.dirty = true;
    }
    Object.assign(held, { x, y });
  }

  // Zoom with the control key or a pinch, so that a page can still be scrolled over the picture.
  wheel(event) {
    if (!event.ctrlKey || this.app.session.round) return;
    event.preventDefault();
    this.app.zoom(Math.exp(event.deltaY / 200));
  }

  key(event) {
    const { app } = this;
    const { session, stage } = app;
    const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const way = ways[event.key];
    const actions = {
      " ": () => app.toggle(),
      ".": () => app.step(),
      ",": () => app.back(),
      "]": () => app.choose(stage.selected + 1),
      "[": () => app.choose(stage.selected - 1),
      n: () => app.tokens.add(),
      Delete: () => app.tokens.remove(),
      Backspace: () => app.tokens.remove(),
      "+": () => app.zoom(0.8),
      "-": () => app.zoom(1.25),
    };
    if (way === undefined && !Object.hasOwn(actions, event.key)) return;
    if (event.metaKey || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    if (way === undefined) actions[event.key]();
    else if (event.shiftKey && session.dim === 3) {
      stage.view.turn.yaw -= 0.1 * way[0];
      stage.view.turn.pitch += 0.1 * way[1];
      app.dirty = true;
    } else this.nudge(way);
  }

  // Move the chosen token a little, as the screen shows it.
  nudge([across, up]) {
    const { session, stage } = this.app;
    const { dim } = session;
    const { view } = stage;
    view.see(session.points(), stage.selected * dim, dim);
    const behind = view.depth < 0;
    const step = 0.02 * Math.min(view.width, view.height);
    const to = view.pointAt(view.x + step * across, view.y - step * up, dim);
    if (behind) this.app.say("This token is behind the sphere: shift and arrows turn it.");
    else this.app.move(stage.selected, to);
  }
}
