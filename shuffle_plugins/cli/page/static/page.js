// Sliders and text fields kept together, the address kept in step with them, and answers shown as they come.
"use strict";

const PAUSE = 150; // ms after the last change before the server is asked
const RESIZED = 40; // px by which the picture's width must change to be drawn anew

const form = document.getElementById("setting");
const answers = ["verdict", "facts", "plot", "bounds", "code"].map((id) => document.getElementById(id));
const refused = document.getElementById("refused");
let asking = null;
let timer = 0;
let drawn = 0;

const number = (text) => Number(text.replace(/[_,\s]/g, ""));
const slider = (input) => document.getElementById(`${input.id}-slider`);
const said = (field) => document.getElementById(`${field}-said`);

// The slider goes to the position that is nearest on a logarithmic scale.
function follow(input) {
  const range = slider(input);
  const value = number(input.value);
  range.setAttribute("aria-valuetext", input.value);
  if (!(value > 0)) return;
  const far = range.values.map((each) => Math.abs(Math.log(each / value)));
  range.value = far.indexOf(Math.min(...far));
}

function setting() {
  const query = new URLSearchParams(new FormData(form));
  if (query.get("mechanism") === "generic") query.delete("dim");
  if (query.get("sampling") === "full") query.delete("cohort");
  return query;
}

// Fields that play no part in this setting are switched off.
function fit() {
  const off = (name, unused) => {
    for (const each of form.querySelectorAll(`[data-field="${name}"] input`)) each.disabled = unused;
    form.querySelector(`[data-field="${name}"]`).classList.toggle("unused", unused);
  };
  off("dim", form.elements.mechanism.value === "generic");
  off("cohort", form.elements.sampling.value === "full");
}

function changed() {
  fit();
  history.replaceState(null, "", `?${setting()}`);
  stale(true);
  clearTimeout(timer);
  asking?.abort();
  timer = setTimeout(ask, PAUSE);
}

function stale(old) {
  for (const each of answers) {
    each.classList.toggle("stale", old);
    each.setAttribute("aria-busy", old);
  }
}

function clear() {
  refused.hidden = true;
  for (const each of form.querySelectorAll(".said .refused")) each.remove();
  for (const each of form.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
}

function refuse(html, field) {
  const place = field && said(field);
  if (!place) {
    refused.innerHTML = html;
    refused.hidden = false;
    return;
  }
  place.insertAdjacentHTML("beforeend", html);
  document.getElementById(field)?.setAttribute("aria-invalid", "true");
}

function show(part) {
  if (part.part === "refused") {
    refuse(part.html, part.field);
    return;
  }
  const place = document.getElementById(part.part);
  const open = [...place.querySelectorAll("details[open]")].map((each) => each.dataset.keep);
  place.innerHTML = part.html;
  for (const name of open) place.querySelector(`details[data-keep="${name}"]`)?.setAttribute("open", "");
  place.classList.remove("stale");
  place.setAttribute("aria-busy", !part.done);
}

async function ask() {
  const mine = (asking = new AbortController());
  const query = setting();
  drawn = document.getElementById("plot").clientWidth;
  query.set("width", drawn);
  try {
    const response = await fetch(`answer?${query}`, { signal: mine.signal });
    if (!response.ok) throw new Error(await response.text());
    clear();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      if (asking === mine) lines.forEach((line) => show(JSON.parse(line)));
    }
    if (asking === mine) document.body.dataset.answered = query;
  } catch (error) {
    if (mine.signal.aborted) return;
    clear();
    refused.textContent = `No answer came (${error.message}). Is shuffle-plugins app still running?`;
    refused.hidden = false;
  }
}

async function copy(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed by the browser";
  }
  setTimeout(() => (button.textContent = label), 1500);
}

for (const range of form.querySelectorAll("input[type=range]")) {
  range.values = range.dataset.values.split(" ");
  const input = document.getElementById(range.id.replace("-slider", ""));
  range.addEventListener("input", () => {
    input.value = range.values[range.value];
    range.setAttribute("aria-valuetext", input.value);
    changed();
  });
  input.addEventListener("input", () => {
    follow(input);
    changed();
  });
  follow(input);
}
for (const each of document.querySelectorAll("select, input[type=radio]")) each.addEventListener("change", changed);
form.addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("click", ({ target }) => {
  if (target.dataset.copy) copy(target, document.getElementById(target.dataset.copy).textContent);
  if (target.id === "link") copy(target, location.href);
});
new ResizeObserver(([entry]) => {
  if (drawn && Math.abs(entry.contentRect.width - drawn) > RESIZED) {
    clearTimeout(timer);
    asking?.abort();
    timer = setTimeout(ask, PAUSE);
  }
}).observe(document.getElementById("plot"));
fit();
ask();
