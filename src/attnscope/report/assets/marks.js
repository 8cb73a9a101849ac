// Everything that has something to tell (.mark) tells it on hover, on focus and on a tap.
// One tab stop per figure: arrow keys move inside it.
(() => {
  const tip = document.getElementById("tip");
  const hide = () => { tip.hidden = true; };
  const show = (mark) => {
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    const box = mark.getBoundingClientRect();
    const left = box.left + box.width / 2 - tip.offsetWidth / 2;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(4, Math.min(left, room))}px`;
    const above = box.top - tip.offsetHeight - 8;
    tip.style.top = `${above > 4 ? above : box.bottom + 8}px`;
  };
  const markOf = (event) => event.target.closest?.(".mark");
  for (const kind of ["pointerover", "focusin", "click"]) {
    document.addEventListener(kind, (event) => {
      const mark = markOf(event);
      if (mark) show(mark);
      else if (kind !== "focusin") hide();
    });
  }
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, true);

  const STEPS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  const place = (mark) => [Number(mark.dataset.row), Number(mark.dataset.column)];
  for (const figure of document.querySelectorAll("[data-roving]")) {
    const marks = () => [...figure.querySelectorAll(".mark")];
    const first = marks()[0];
    if (first) first.tabIndex = 0;
    figure.addEventListener("keydown", (event) => {
      const from = markOf(event);
      if (event.key === "Escape") hide();
      if (!from || !(event.key in STEPS || event.key === "Home" || event.key === "End")) return;
      event.preventDefault();
      const all = marks();
      let next;
      if (event.key in STEPS) {
        const [row, column] = place(from).map((at, axis) => at + STEPS[event.key][axis]);
        next = all.find((mark) => place(mark)[0] === row && place(mark)[1] === column);
      } else {
        next = event.key === "Home" ? all[0] : all[all.length - 1];
      }
      if (!next) return;
      from.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  }
})();
