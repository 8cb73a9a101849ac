// The local Lipschitz constant of attention at the present tokens, with its top direction and the
// proved bounds. It is worked out a few milliseconds at a time, so that the flow goes on.
import { boundSteps } from "./bounds.js";
import { Field } from "./field.js";
import { Jacobian } from "./jacobian.js";
import { LargestSingularValue } from "./lanczos.js";
import { affineField, gaussianOf } from "./motion.js";
import { eigen, multiply, transpose } from "./matrix.js";

export class Measurement {
  constructor(attention, x, masses, dim, time) {
    this.time = time;
    this.done = false;
    this.steps = this.all(attention, Float64Array.from(x), masses, dim);
  }

  *all(attention, x, masses, dim) {
    const field = new Field(attention, masses, dim);
    field.place(x);
    yield;
    const jacobian = new Jacobian(field);
    yield;
    const top = new LargestSingularValue(jacobian);
    while (!top.done) {
      top.step();
      yield;
    }
    this.sigma = top.value;
    this.residual = top.residual;
    // from L2(mu) back to moves of tokens
    this.direction = Float64Array.from(
      top.direction, (value, k) => value / field.root[Math.floor(k / dim)],
    );
    this.plan = field.plans === null ? 0 : Math.max(...field.plans.map((plan) => plan.residual));
    this.bounds = yield* boundSteps(jacobian);
  }

  work(deadline = Infinity) {
    while (!this.done) {
      this.done = this.steps.next().done === true;
      if (performance.now() > deadline) break;
    }
    return this.done;
  }
}

// For a Gaussian: the norm of the matrix B of its affine field Bx + b, in closed form, and the
// direction that it stretches most.
export function gaussianStretch(attention, y) {
  const { matrix } = affineField(attention, gaussianOf(y));
  const { values, vectors } = eigen(multiply(transpose(matrix, 2), matrix, 2), 2);
  return { value: Math.sqrt(Math.max(values[0], 0)), direction: [vectors[0], vectors[2]] };
}
