// Another layer of a tinted text: the same tokens, other shares.
(() => {
  for (const choice of document.querySelectorAll("select[data-tokens]")) {
    const place = choice.dataset.tokens;
    const held = JSON.parse(document.getElementById(`${place}-shares`).textContent);
    choice.addEventListener("change", () => {
      held.layers[choice.value].forEach((shares, which) => {
        const text = document.getElementById(`${place}-${which}`);
        const largest = Math.max(...shares.filter(Number.isFinite)) || 1;
        [...text.querySelectorAll(".mark")].forEach((mark, token) => {
          const share = Number.isFinite(shares[token]) ? shares[token] : 0;
          const strength = Math.round(held.strongest * Math.sqrt(share / largest));
          mark.style.background = `color-mix(in srgb, var(--${text.dataset.tint}) ${strength}%, transparent)`;
          mark.setAttribute("aria-label", `${held.told[which][token]} ${(100 * share).toFixed(1)} %`);
        });
      });
    });
  }
})();
