// Sends the form of the view that asks what if, in JSON, and shows the answer, which the server has made HTML of.
"use strict";

(() => {
  const form = document.getElementById("whatif");
  const answer = document.getElementById("answer");
  const status = document.getElementById("asking");
  const field = (id) => document.getElementById(id);
  const words = (id) => field(id).value.split(/[\s,]+/).filter((one) => one !== "");
  const most = Number(form.dataset.most);

  field("file").addEventListener("change", async () => {
    const [file] = field("file").files;
    if (file === undefined) return;
    if (file.size > most) status.textContent = `The file has more than ${most.toLocaleString("en")} bytes.`;
    else field("manifest").value = await file.text();
  });

  const question = () => {
    const like = field("like").value.trim();
    const nodes = Number(field("count").value);
    return JSON.stringify({
      manifest: field("manifest").value,
      pods: words("pods"),
      cordon: words("cordon"),
      drain: words("drain"),
      add: nodes === 0 ? [] : [{ count: nodes, like }],
      holdings: false,
    });
  };

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if ((field("like").value.trim() === "") !== (Number(field("count").value) === 0)) {
      status.textContent = "To add nodes, state how many, and a node or machine that they are like.";
      return;
    }
    const body = question();
    if (new TextEncoder().encode(body).length > most) {
      status.textContent = `The question has more than ${most.toLocaleString("en")} bytes.`;
      return;
    }
    const button = form.querySelector("button");
    button.disabled = true;
    status.textContent = "Asking …";
    try {
      const headers = { "content-type": "application/json", accept: "text/html" };
      const reply = await fetch(form.dataset.ask, { method: "POST", headers, body });
      const shown = new DOMParser().parseFromString(await reply.text(), "text/html");
      answer.replaceChildren(...shown.body.childNodes);
      status.textContent = reply.ok ? "Answered." : "Not answered.";
      answer.focus();
    } catch {
      status.textContent = "The server does not answer.";
    } finally {
      button.disabled = false;
    }
  });

  field("unscripted").hidden = true;
  form.hidden = false;
})();
