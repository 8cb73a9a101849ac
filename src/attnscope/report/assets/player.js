// Points in motion: the slider chooses the moment, the button runs through all of them.
(() => {
  const SECONDS = 6;
  for (const slider of document.querySelectorAll("input[data-player]")) {
    const place = slider.dataset.player;
    const part = (name) => document.getElementById(`${place}-${name}`);
    const { times, places, closed, name } = JSON.parse(part("frames").textContent);
    const group = part("picture").querySelector("g");
    const button = part("play");
    let running = null;

    const draw = () => {
      const frame = places[slider.value];
      if (closed) {
        group.firstElementChild.setAttribute("points", frame.map((at) => at.join(",")).join(" "));
      } else {
        frame.forEach(([x, y], token) => {
          group.children[token].setAttribute("cx", x);
          group.children[token].setAttribute("cy", y);
        });
      }
      part("time").textContent = `${name} = ${Number(Number(times[slider.value]).toPrecision(3))}`;
    };
    const halt = () => {
      cancelAnimationFrame(running);
      running = null;
      button.textContent = "Play";
    };
    button.addEventListener("click", () => {
      if (running !== null) return halt();
      button.textContent = "Pause";
      const begun = performance.now();
      const first = Number(slider.value) >= times.length - 1 ? 0 : Number(slider.value);
      const step = (now) => {
        const at = first + ((now - begun) / 1000 / SECONDS) * (times.length - 1);
        slider.value = Math.min(at, times.length - 1);
        draw();
        if (at >= times.length - 1) halt();
        else running = requestAnimationFrame(step);
      };
      running = requestAnimationFrame(step);
    });
    slider.addEventListener("input", () => { halt(); draw(); });
  }
})();
