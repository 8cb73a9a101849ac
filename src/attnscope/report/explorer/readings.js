// Numbers beside the picture: the constant with its bounds, and the charts.
import { Chart, drawDisc } from "./charts.js";
import { byId, element } from "./element.js";
import { shortNumber } from "./marks.js";

const CHARTS = [
  ["radius", "Radius", "of the farthest token; dashed: proved bound R(0) e^(ct)"],
  ["clusters", "Clusters", "chains of hops of R/20 at most"],
  ["rank", "Rank", "of the covariance"],
  ["energy", "Energy", ""],
  ["sigma", "Local constant σ", ""],
  ["disc", "Shape of the covariance", "S / tr S in the disc; the circle is rank one"],
];

export class Readings {
  constructor(app) {
    this.app = app;
    this.charts = CHARTS.map(([name, title, note]) => this.chart(name, title, note));
  }

  chart(name, title, note) {
    const value = element("output");
    const canvas = element("canvas", { role: "img" });
    const words = element("p", { textContent: note });
    const box = element(
      "div", { className: "chart" }, element("h3", {}, title, value), words, canvas,
    );
    byId("charts").append(box);
    return { name, title, box, value, canvas, words, chart: new Chart(canvas) };
  }

  refresh() {
    for (const { chart } of this.charts) chart.refresh();
  }

  // Which charts there are, and what is said beside them.
  update() {
    const { session } = this.app;
    for (const { name, box, words } of this.charts) {
      box.hidden =
        name === (session.gaussian ? "clusters" : "disc") || (name === "radius" && session.round);
      if (name === "energy") words.textContent = this.energyWords();
      if (name === "sigma") {
        words.textContent = session.gaussian ? "|B|, in closed form" : "estimate, where measured";
      }
      if (name === "radius") {
        words.textContent = session.gaussian
          ? "one standard deviation along the longest axis"
          : "of the farthest token; dashed: proved bound R(0) e^(ct)";
      }
    }
    this.refresh();
    this.draw();
    this.measured();
  }

  energyWords() {
    const { present, attention, dim } = this.app.session;
    if (Number.isNaN(present.energy)) return "none is known to rise with these choices";
    const c = attention.variant.climbs(attention.heads[0], dim);
    return c > 0 ? "it can only rise (a theorem)" : "it can only fall (a theorem)";
  }

  draw() {
    const { session } = this.app;
    const { history, state, sigmas, present } = session;
    const time = (i) => history.times[i];
    for (const { name, title, box, value, canvas, chart } of this.charts) {
      if (box.hidden) continue;
      if (name === "disc") {
        drawDisc(chart, history.length, (i) => history.state(i), session.place);
        canvas.ariaLabel = title;
        continue;
      }
      const now = name === "sigma" ? (sigmas.at(-1)?.[1] ?? NaN) : present[name];
      value.textContent = shortNumber(now);
      canvas.ariaLabel = `${title} against time, now ${shortNumber(now)}`;
      if (name === "sigma") {
        chart.draw(sigmas.length, (i) => sigmas[i][0], (i) => sigmas[i][1], state.time);
        continue;
      }
      const look = { steps: name === "clusters" || name === "rank" };
      if (name === "radius" && !session.round && !session.gaussian) {
        look.ceiling = (t) => session.radiusBound(t);
      }
      const series = history.series[name];
      chart.draw(history.length, time, (i) => series[i], state.time, look);
    }
  }

  measured() {
    const { session } = this.app;
    const { measured, gaussian } = session;
    const fresh = measured !== null && measured.time === session.state.time;
    byId("sigma").replaceChildren(
      measured === null ? "measuring …" : `σ ${gaussian ? "=" : "≈"} ${shortNumber4(measured.sigma)} `,
      element("small", {
        textContent: measured === null || fresh ? "" : `measured at t = ${shortNumber(measured.time)}`,
      }),
    );
    byId("sigma-note").textContent = gaussian
      ? "The norm of the matrix B of the field Bx + b, in closed form: how much the velocity differs "
        + "between two places. It moves one token, not the Gaussian."
      : measured === null
        ? ""
        : "An estimate from below of the largest stretch of small moves of all tokens; residual "
          + `${shortNumber(measured.residual / measured.sigma)} of it.`;
    this.table(measured === null ? [] : measured.bounds, measured?.sigma ?? 1);
  }

  table(bounds, sigma) {
    const { gaussian } = this.app.session;
    byId("bounds").hidden = bounds.length === 0;
    byId("no-bounds").hidden = !gaussian;
    byId("no-bounds").textContent = gaussian
      ? "The bounds speak of tokens in a ball; a Gaussian is in none."
      : "";
    const most = Math.log10(Math.max(...bounds.map(({ value }) => Math.min(value / sigma, 1e6)), 10));
    byId("bounds").tBodies[0].replaceChildren(
      ...bounds.map(({ name, value, where }) => {
        const bar = element("span", { className: "bar" });
        const share = Math.log10(Math.max(Math.min(value / sigma, 1e6), 1.02)) / most;
        bar.style.width = `${Math.max(2, 100 * share)}%`;
        return element(
          "tr", {},
          element("th", { scope: "row", textContent: name }),
          element("td", {}, shortNumber4(value)),
          element("td", {}, `${shortNumber(value / sigma)}×`, bar),
          element("td", { className: "holds", textContent: where }),
        );
      }),
    );
  }
}

function shortNumber4(value) {
  if (!(Math.abs(value) < 1e5)) return shortNumber(value);
  return String(Number(value.toPrecision(4)));
}
