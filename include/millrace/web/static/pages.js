"use strict";
// Theme, links that leave Airflow's frame, parts that load and refresh, and forms that Airflow itself carries out.

const REFRESH_MS = 15000;
const LOOK_MS = 1000;
const LOOKS = 120;
const framed = window.parent !== window;

function theme() {
  const outer = framed ? window.parent.document.documentElement.classList : null;
  const known = outer && (outer.contains("dark") || outer.contains("light"));
  const dark = known ? outer.contains("dark") : window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

theme();
if (framed) {
  new MutationObserver(theme).observe(window.parent.document.documentElement, { attributeFilter: ["class"] });
}
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);

// The frame's sandbox forbids popups and navigating the top window from within; a link of the outer page may do that.
function leave(address) {
  const link = window.parent.document.createElement("a");
  link.href = address;
  window.parent.document.body.append(link);
  link.click();
  link.remove();
}

function sentence(status, text) {
  const found = new DOMParser().parseFromString(text, "text/html").getElementById("refused");
  return found ? found.textContent : `${status}: ${text.slice(0, 300)}`;
}

async function load(part) {
  let text;
  try {
    const answer = await fetch(part.dataset.fragment);
    text = await answer.text();
    if (!answer.ok) throw new Error(sentence(answer.status, text));
  } catch (error) {
    const told = document.createElement("p");
    told.className = "headline warning";
    told.textContent = error.message;
    part.replaceChildren(told);
    return;
  }
  part.innerHTML = text; // made by our own templates, which escape all that others wrote
}

async function refresh() {
  if (document.hidden) return;
  const told = document.getElementById("unrefreshed");
  try {
    const answer = await fetch(window.location.href);
    const text = await answer.text();
    if (!answer.ok) throw new Error(sentence(answer.status, text));
    const fresh = new DOMParser().parseFromString(text, "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const found = fresh.getElementById(part.id);
      if (found && !part.contains(document.activeElement)) part.replaceWith(found);
    }
    told.hidden = true;
  } catch (error) {
    if (told.hidden) told.dataset.since = new Date().toISOString().slice(11, 19);
    told.hidden = false;
    told.textContent = `Not refreshed since ${told.dataset.since} UTC: ${error.message}`;
  }
}

function tell(output, kind, text, address) {
  output.className = kind;
  output.textContent = text;
  if (!address) return;
  const link = document.createElement("a");
  link.href = address;
  link.dataset.leave = "";
  link.textContent = "its run in Airflow";
  output.append(" ", link);
}

const pause = () => new Promise((resolve) => setTimeout(resolve, LOOK_MS));

async function refusal(answer) {
  const text = await answer.text();
  let detail = text;
  try {
    const said = JSON.parse(text).detail;
    detail = typeof said === "string" ? said : JSON.stringify(said);
  } catch {
    // not JSON: a proxy in between
  }
  return `Airflow refused (${answer.status}): ${detail.slice(0, 500)}`;
}

async function follow(output, base, dag, run) {
  const path = `${base}/api/v2/dags/${encodeURIComponent(dag)}/dagRuns/${encodeURIComponent(run)}`;
  const page = `${base}/dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`;
  for (let look = 0; look < LOOKS; look += 1) {
    await pause();
    const answer = await fetch(path);
    if (!answer.ok) {
      tell(output, "", `Requested, but Airflow does not report the state (${answer.status}). See`, page);
      return;
    }
    const state = (await answer.json()).state;
    if (state === "success") {
      tell(output, "fine", "Done, see", page);
      refresh();
      return;
    }
    if (state === "failed") {
      tell(output, "wrong", "It failed. The log says why:", page);
      return;
    }
    const waits = dag.endsWith(".rewind") ? "The plan is ready. Confirm it under Required Actions of" : `Requested, ${state}:`;
    tell(output, "", waits, page);
  }
  tell(output, "", "Still running, see", page);
}

async function act(form, submitter) {
  const output = form.querySelector("output");
  const buttons = form.querySelectorAll("button");
  const base = document.body.dataset.airflow;
  const conf = { stream: form.dataset.stream, ...Object.fromEntries(new FormData(form, submitter)) };
  buttons.forEach((button) => { button.disabled = true; });
  tell(output, "", "Asking Airflow …");
  try {
    const answer = await fetch(`${base}/api/v2/dags/${encodeURIComponent(form.dataset.dag)}/dagRuns`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ logical_date: null, conf }),
    });
    if (!answer.ok) {
      tell(output, "wrong", await refusal(answer));
      return;
    }
    await follow(output, base, form.dataset.dag, (await answer.json()).dag_run_id);
  } catch (error) {
    tell(output, "wrong", `Airflow did not confirm the request (${error.message}). Check`,
      `${base}/dags/${encodeURIComponent(form.dataset.dag)}`);
  } finally {
    buttons.forEach((button) => { button.disabled = false; });
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-leave]");
  if (!link || !framed) return;
  event.preventDefault();
  leave(link.href);
});

document.addEventListener("submit", (event) => {
  event.preventDefault();
  act(event.target, event.submitter);
});

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("[data-fragment]").forEach(load);
  if (document.querySelector("[data-live]")) setInterval(refresh, REFRESH_MS);
});
