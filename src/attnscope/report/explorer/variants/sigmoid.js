// Sigmoid attention, the mean form: V int sigma(<Ax,y> + b) y dmu [ramapuram24].

export const sigmoid = {
  name: "sigmoid",
  title: "sigmoid",
  formula: "Γ(x) = V ∫ σ(⟨Ax,y⟩ + b) y dμ(y)",
  normalised: false,
  masked: true,
  matrices: ["A"],
  parameter: { key: "bias", label: "bias b", low: -6, high: 6, step: 0.1 },
  slope: (head) => head.A,
  biasSlope: () => null,
  onGaussian: null,
  climbs: () => null,
  energy: null,
  energyOnGaussian: null,
};
