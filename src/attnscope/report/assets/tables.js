// Tables: a click on a heading sorts, words filter; long ones show a hundred rows at a time.
(() => {
  const PAGE = 100;
  const FORM = /^([^\s<>=!]+)(<=|>=|!=|=|<|>)(.*)$/;
  const asNumber = (value) => (typeof value === "number" ? value : Number.parseFloat(value));
  const TESTS = {
    "=": (a, b) => a === b, "!=": (a, b) => a !== b, "<": (a, b) => a < b,
    ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b,
  };

  // "layer=3 n>=64 B1" keeps rows whose layer is 3, whose n is at least 64, and that say B1
  const filterOf = (text, names) => {
    const tests = text.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
      const form = FORM.exec(word);
      const column = form ? names.indexOf(form[1]) : -1;
      if (column < 0) return (row) => row.some((value) => String(value).toLowerCase().includes(word));
      const [, , sign, wanted] = form;
      return (row) => {
        const number = Number(wanted);
        return wanted !== "" && Number.isFinite(number)
          ? TESTS[sign](asNumber(row[column]), number)
          : TESTS[sign](String(row[column]).toLowerCase(), wanted);
      };
    });
    return (row) => tests.every((test) => test(row));
  };

  const compared = (rows, column) => {
    const filled = rows.map((row) => row.values[column]).filter((value) => value !== "");
    const numeric = filled.filter((value) => Number.isFinite(asNumber(value))).length * 2 > filled.length;
    return (one, other) => {
      const a = one.values[column], b = other.values[column];
      if (!numeric) return String(a).localeCompare(String(b));
      const x = asNumber(a), y = asNumber(b);
      // what is no number comes last, whatever the order
      if (!Number.isFinite(x) || !Number.isFinite(y)) return null;
      return x - y;
    };
  };

  const ordered = (rows, column, sign) => {
    const compare = compared(rows, column);
    const isNumber = (row) => Number.isFinite(asNumber(row.values[column]));
    return [...rows].sort((a, b) => {
      const told = compare(a, b);
      if (told === null) return Number(isNumber(b)) - Number(isNumber(a));
      return sign * told;
    });
  };

  const lineOf = (values) => {
    const line = document.createElement("tr");
    for (const value of values) line.insertCell().textContent = String(value);
    return line;
  };

  const equip = (table) => {
    const body = table.tBodies[0];
    const stored = document.getElementById(`${table.id}-rows`);
    const rows = stored
      ? JSON.parse(stored.textContent).map((values) => ({ values }))
      : [...body.rows].map((line) => ({ line, values: [...line.cells].map((cell) => cell.textContent.trim()) }));
    const heads = [...table.tHead.rows[0].cells];
    const names = heads.map((head) => head.textContent.trim().toLowerCase());
    const search = document.querySelector(`input[aria-controls="${CSS.escape(table.id)}"]`);
    const more = document.createElement("button");
    more.type = "button";
    more.className = "more";
    table.closest(".scroll").after(more);
    let order = rows, limit = PAGE;

    const draw = () => {
      const keep = filterOf(search ? search.value : "", names);
      const kept = order.filter((row) => keep(row.values));
      body.replaceChildren(...kept.slice(0, limit).map((row) => (row.line ??= lineOf(row.values))));
      table.caption.dataset.count = kept.length;
      more.hidden = kept.length <= limit;
      more.textContent = `Show ${Math.min(PAGE, kept.length - limit)} more of ${kept.length}`;
    };
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      order = ordered(rows, column, down ? -1 : 1);
      draw();
    }));
    more.addEventListener("click", () => { limit += PAGE; draw(); });
    search?.addEventListener("input", () => { limit = PAGE; draw(); });
    draw();
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const fold = table.closest("details");
    // rows that are folded away are made when they are asked for
    if (fold) fold.addEventListener("toggle", () => equip(table), { once: true });
    else equip(table);
  }
})();
