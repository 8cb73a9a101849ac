// The variant, its parameter, heads and matrices.
import { NAMES, named } from "./matrices.js";
import { MOST_HEADS } from "./state.js";
import { VARIANTS } from "./variants.js";
import { byId, check, choices, element, options } from "./element.js";
import { scaled } from "./matrix.js";
import { shortNumber } from "./marks.js";

const ROLES = { A: "scores", Q: "queries", K: "keys", V: "values" };
const WIDEST = 3;

export class AttentionPanel {
  constructor(app) {
    this.app = app;
    this.seed = 1;
    const pairs = Object.values(VARIANTS).map((variant) => [variant.name, variant.title]);
    choices(byId("variant"), "variant", pairs, (name) => this.choose(name));
    options(byId("heads"), Array.from({ length: MOST_HEADS }, (_, k) => [k + 1, k + 1]));
    byId("heads").addEventListener("change", (event) => this.setHeads(Number(event.target.value)));
    byId("causal").addEventListener("change", (event) =>
      app.change((state) => { state.causal = event.target.checked; }),
    );
    byId("parameter").querySelector("input").addEventListener("input", (event) => {
      const { key } = VARIANTS[app.session.state.variant].parameter;
      app.change((state) => { state[key] = Number(event.target.value); });
    });
  }

  choose(name) {
    this.app.change((state) => {
      state.variant = name;
      if (VARIANTS[name].onGaussian === null) state.measure = "tokens";
    });
  }

  // More heads share the work: values are divided among them, new ones look elsewhere.
  setHeads(count) {
    const { dim } = this.app.session;
    const seeds = Array.from({ length: MOST_HEADS }, () => this.seed++);
    this.app.change((state) => {
      const before = state.heads.length;
      state.heads = Array.from({ length: count }, (_, h) => {
        if (h >= before) {
          const drawn = (k) => named("random", dim, 10 * seeds[h] + k);
          return { A: drawn(1), Q: drawn(2), K: drawn(3), V: scaled(state.heads[0].V, before / count) };
        }
        return { ...state.heads[h], V: scaled(state.heads[h].V, before / count) };
      });
    });
  }

  // Rebuild what depends on the variant, the number of heads and the dimension; else set values.
  update() {
    const { state, dim } = this.app.session;
    const variant = VARIANTS[state.variant];
    check(byId("variant"), state.variant);
    byId("formula").textContent = variant.formula + (state.heads.length > 1 ? ", added over heads" : "");
    byId("heads").value = state.heads.length;
    byId("causal").disabled = !variant.masked || state.measure === "gaussian";
    byId("causal").checked = this.app.session.attention.causal;
    const row = byId("parameter");
    row.hidden = variant.parameter === null;
    if (variant.parameter !== null) {
      const { key, label, low, high, step } = variant.parameter;
      row.querySelector("span").textContent = label;
      Object.assign(row.querySelector("input"), { min: low, max: high, step, value: state[key] });
      row.querySelector("output").textContent = shortNumber(state[key]);
    }
    const kind = `${variant.name} ${state.heads.length} ${dim}`;
    if (kind !== this.kind) this.build(variant, state.heads.length, dim);
    this.kind = kind;
    for (const { matrix, h, k, input, output } of this.cells) {
      const value = state.heads[h][matrix][k];
      const far = Math.max(WIDEST, Math.ceil(Math.abs(value)));
      if (Number(input.max) !== far) Object.assign(input, { min: -far, max: far });
      if (document.activeElement !== input || Number(input.value) !== value) input.value = value;
      output.textContent = shortNumber(value);
    }
  }

  build(variant, heads, dim) {
    this.cells = [];
    const made = [];
    for (let h = 0; h < heads; h++) {
      for (const matrix of [...variant.matrices, "V"]) made.push(this.editor(matrix, h, heads, dim));
    }
    byId("matrices").replaceChildren(...made);
  }

  editor(matrix, h, heads, dim) {
    const title = heads > 1 ? `${matrix} of head ${h + 1}` : matrix;
    const by = element("select", { ariaLabel: `${title} by name` });
    options(by, [["", "by name"], ...NAMES.map((name) => [name, name])]);
    by.addEventListener("change", () => {
      if (by.value === "") return;
      const found = named(by.value, dim, this.seed++);
      this.set(matrix, h, () => found);
      by.value = "";
    });
    const halve = element("button", { type: "button", textContent: "×½", ariaLabel: `Halve ${title}` });
    const double = element("button", { type: "button", textContent: "×2", ariaLabel: `Double ${title}` });
    const turn = element("button", { type: "button", textContent: "−", ariaLabel: `Negate ${title}` });
    halve.addEventListener("click", () => this.set(matrix, h, (m) => scaled(m, 0.5)));
    double.addEventListener("click", () => this.set(matrix, h, (m) => scaled(m, 2)));
    turn.addEventListener("click", () => this.set(matrix, h, (m) => scaled(m, -1)));
    const cells = element("div", { className: "cells" });
    cells.style.gridTemplateColumns = `repeat(${dim}, minmax(0, 1fr))`;
    for (let k = 0; k < dim * dim; k++) cells.append(this.cell(matrix, h, k, dim, title));
    return element(
      "fieldset",
      { className: "matrix" },
      element("legend", { textContent: `${title}, ${ROLES[matrix]}` }),
      element("div", { className: "tools" }, by, halve, double, turn),
      cells,
    );
  }

  cell(matrix, h, k, dim, title) {
    const place = `row ${Math.floor(k / dim) + 1} column ${(k % dim) + 1}`;
    const input = element("input", {
      type: "range", min: -WIDEST, max: WIDEST, step: 0.01, ariaLabel: `${title}, ${place}`,
    });
    const output = element("output");
    input.addEventListener("input", () => {
      const value = Number(input.value);
      this.set(matrix, h, (m) => Float64Array.from(m, (old, at) => (at === k ? value : old)));
    });
    this.cells.push({ matrix, h, k, input, output });
    return element("div", { className: "cell" }, input, output);
  }

  set(matrix, h, edit) {
    this.app.change((state) => { state.heads[h][matrix] = edit(state.heads[h][matrix]); });
  }
}
