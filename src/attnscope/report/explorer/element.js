// Elements of the page.

export const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// A row of radio buttons that look like one control.
export function choices(fieldset, name, options, choose) {
  for (const [value, title] of options) {
    const input = element("input", { type: "radio", name, value });
    input.addEventListener("change", () => choose(value));
    fieldset.append(element("label", {}, input, element("span", { textContent: title })));
  }
}

export function check(fieldset, value) {
  for (const input of fieldset.querySelectorAll("input")) input.checked = input.value === value;
}

export function options(select, pairs) {
  select.replaceChildren(
    ...pairs.map(([value, title]) => element("option", { value, textContent: title })),
  );
}
