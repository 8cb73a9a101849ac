// Light or dark: as the system says, until the reader chooses; the choice is kept where it can be.
(() => {
  const button = document.getElementById("theme");
  const kept = (value) => {
    try {
      if (value === undefined) return localStorage.getItem("attnscope-theme");
      localStorage.setItem("attnscope-theme", value);
    } catch { /* a file opened without storage still has its button */ }
    return null;
  };
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.body.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const tell = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Change to the ${isDark() ? "light" : "dark"} theme`);
  };
  const before = kept();
  if (before === "dark" || before === "light") document.body.dataset.theme = before;
  button.addEventListener("click", () => {
    document.body.dataset.theme = isDark() ? "light" : "dark";
    kept(document.body.dataset.theme);
    tell();
  });
  system.addEventListener("change", tell);
  tell();
})();
