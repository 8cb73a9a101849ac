// Colours of the page for canvases, and the choice between light and dark.

const NAMES = ["ink", "soft", "faint", "line", "paper", "accent", "warm"];
const KEPT = "attnscope-theme"; // the choice that the reports keep, too
let probe = null;

// A property that depends on the scheme is resolved by an element that wears it.
export function colours() {
  if (probe === null) {
    probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
  }
  const found = NAMES.map((name) => {
    probe.style.color = `var(--${name})`;
    return [name, getComputedStyle(probe).color];
  });
  return Object.fromEntries(found);
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  if (chosen) return chosen === "dark";
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

export function choose(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEPT, theme);
  } catch { /* a file opened without storage still has its button */ }
}

export function recall() {
  try {
    const kept = localStorage.getItem(KEPT);
    if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
  } catch { /* nothing is kept */ }
}

// Hues along the sequence or around the circle that look equally bright.
export function hue(share, dark) {
  return `hsl(${Math.round(360 * share)} 70% ${dark ? 66 : 44}%)`;
}
