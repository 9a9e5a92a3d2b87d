// Live updates: when the server states that the cluster has changed, the view is asked for again, and <main> is
// exchanged. The stream is closed while the page is not visible or updates are paused. Without this script all of the
// page works.
"use strict";

(() => {
  const PAUSED = "gpu-extender.paused";

  // Parts that cost much come when the rest is there. Without this script each has a link instead.
  const fill = async () => {
    for (const section of document.querySelectorAll("[data-late]")) {
      if (section.dataset.filled !== undefined) continue;
      section.dataset.filled = "";
      const text = await asked(section.dataset.late);
      const part = text === null ? null : text.getElementById(section.dataset.part);
      if (part !== null) section.querySelector(".late").replaceChildren(...part.childNodes);
    }
  };

  const asked = async (address) => {
    try {
      const answer = await fetch(address, { headers: { accept: "text/html" } });
      return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
    } catch {
      return null;
    }
  };

  // A map of many cells is one stop of the Tab key; the arrow keys move between its cells.
  const cells = () => [...document.querySelectorAll("a.cell")];

  const enter = () => {
    const all = cells();
    const current = all.includes(document.activeElement) ? document.activeElement : all[0];
    for (const cell of all) cell.tabIndex = cell === current ? 0 : -1;
  };

  document.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const all = cells();
    const place = all.indexOf(document.activeElement);
    if (step === undefined || place < 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    const next = event.key.endsWith("Up") || event.key.endsWith("Down") ? below(all, place, step) : all[place + step];
    if (next === undefined) return;
    event.preventDefault();
    next.focus();
    enter();
  });

  // The cell that is nearest in the next line of cells, up (-1) or down (1).
  const below = (all, place, step) => {
    const box = all[place].getBoundingClientRect();
    const boxes = all.map((cell) => cell.getBoundingClientRect());
    const lines = boxes.map((other) => (other.top - box.top) * step).filter((distance) => distance > box.height / 2);
    const line = Math.min(...lines);
    const near = all.filter((_, other) => Math.abs((boxes[other].top - box.top) * step - line) < 1);
    const distance = (cell) => Math.abs(cell.getBoundingClientRect().left - box.left);
    return near.sort((a, b) => distance(a) - distance(b))[0];
  };

  enter();
  if (document.readyState === "complete") fill();
  else window.addEventListener("load", fill);
  if ("still" in document.body.dataset) return; // the view costs too much to be made again and again
  const status = document.getElementById("status");
  const pause = document.getElementById("pause");
  let stream = null;
  let asking = false;

  const paused = () => sessionStorage.getItem(PAUSED) === "yes";

  const open = () => {
    if (stream !== null || document.hidden || paused()) return;
    stream = new EventSource(`/live?generation=${document.body.dataset.generation}`);
    stream.addEventListener("change", update);
    stream.addEventListener("error", lost);
  };

  // After a lost connection the browser tries again by itself; after an answer that is no stream it does not.
  const lost = () => {
    if (stream === null || stream.readyState !== EventSource.CLOSED) return;
    status.textContent = "This view is not updated: too many pages are open, or the server does not answer.";
    stream = null;
  };

  const close = () => {
    if (stream !== null) stream.close();
    stream = null;
  };

  const update = async () => {
    if (asking) return;
    asking = true;
    const next = await asked(location.href);
    asking = false;
    if (next !== null) exchange(next);
    else status.textContent = "The server does not answer.";
  };

  const exchange = (next) => {
    const main = document.querySelector("main");
    const focused = path(document.activeElement, main);
    if (focused !== null && focused.editing) return; // a form is being filled in
    for (const one of main.querySelectorAll("details[id]")) {
      const other = next.getElementById(one.id);
      if (other !== null) other.open = one.open;
    }
    for (const one of main.querySelectorAll("[data-filled]")) next.getElementById(one.id)?.replaceWith(one);
    main.replaceChildren(...next.querySelector("main").childNodes);
    document.querySelector("footer p").replaceWith(next.querySelector("footer p"));
    document.body.dataset.generation = next.body.dataset.generation;
    enter();
    if (focused !== null) find(main, focused)?.focus({ preventScroll: true });
    status.textContent = `Updated at ${new Date().toLocaleTimeString()}.`;
  };

  // What has the focus is found again by its address or id, else by its place among its kind.
  const path = (element, main) => {
    if (element === null || !main.contains(element) || element === main) return null;
    const kind = element.tagName.toLowerCase();
    const place = [...main.querySelectorAll(kind)].indexOf(element);
    return { kind, place, id: element.id, href: element.getAttribute("href"), editing: element.form != null };
  };

  const find = (main, was) => {
    if (was.id) return document.getElementById(was.id);
    const all = [...main.querySelectorAll(was.kind)];
    return all.find((one) => was.href !== null && one.getAttribute("href") === was.href) ?? all[was.place];
  };

  pause.addEventListener("click", () => {
    sessionStorage.setItem(PAUSED, paused() ? "no" : "yes");
    show();
    if (!paused()) update();
  });

  const show = () => {
    pause.setAttribute("aria-pressed", String(paused()));
    status.textContent = paused() ? "Updates are paused." : "";
    if (paused()) close();
    else open();
  };

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else {
      open();
      update();
    }
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);
  pause.parentElement.hidden = false;
  show();
})();
