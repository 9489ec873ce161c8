// Follows the surrounding Airflow page's theme, opens links outside the frame, submits the form.
(() => {
  "use strict";
  const root = document.documentElement;
  const outside = (() => {
    try {
      return window.parent !== window && window.parent.document ? window.parent.document : null;
    } catch {
      return null;
    }
  })();

  if (outside) {
    const follow = () => {
      const page = outside.documentElement;
      const theme = page.dataset.theme || "";
      const dark = page.classList.contains("dark") || theme === "dark";
      root.dataset.theme = dark ? "dark" : "light";
    };
    follow();
    new MutationObserver(follow).observe(outside.documentElement, {
      attributes: true,
      attributeFilter: ["class", "data-theme", "style"],
    });
  }

  // Airflow's sandbox forbids a framed page to navigate the window; a link of the window may.
  const leave = (href) => {
    if (!outside) {
      window.location.assign(href);
      return;
    }
    const link = outside.createElement("a");
    link.href = href;
    outside.body.append(link);
    link.click();
    link.remove();
  };

  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[data-airflow]") : null;
    if (link && outside) {
      event.preventDefault();
      leave(link.href);
    }
  });

  // The names in a comma-separated list; one with a comma or outer blanks is quoted.
  const listed = (text) => {
    const one = /\s*(?:"((?:[^"]|"")*)"|([^,"\s][^,]*?)?)\s*(?:,|$)/y;
    const names = [];
    while (one.lastIndex < text.length) {
      const match = one.exec(text);
      if (!match) {
        return [text];
      }
      const name = match[1] === undefined ? match[2] : match[1].replaceAll('""', '"');
      if (name !== undefined) {
        names.push(name);
      }
    }
    return names;
  };

  const read = (form) => {
    const conf = JSON.parse(form.dataset.conf || "{}");
    for (const field of form.querySelectorAll("[data-kind]")) {
      const text = field.value.trim();
      const kind = field.dataset.kind;
      if (kind === "switch") {
        conf[field.name] = field.checked;
      } else if (kind === "list") {
        const parts = listed(text);
        conf[field.name] = parts.length ? parts : null;
      } else if (kind === "whole") {
        conf[field.name] = text ? Number(text) : null;
      } else {
        conf[field.name] = text || null;
      }
    }
    return conf;
  };

  // Reload the page with the form's current values, to show their plan.
  const plan = (form) => {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(read(form))) {
      for (const item of Array.isArray(value) ? value : [value]) {
        if (item !== null && item !== false) {
          query.append(name, String(item));
        }
      }
    }
    window.location.assign(`${window.location.pathname}?${query}`);
  };

  const errorText = (answer) => {
    const detail = answer && answer.detail;
    return typeof detail === "string" ? detail : JSON.stringify(detail || answer);
  };

  // The command of an action, with the range that is filled in.
  const quoted = (text) => (/^[\w:.,+/-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const command = (form) => {
    const options = [...form.querySelectorAll("[data-range]")]
      .filter((field) => field.value.trim())
      .map((field) => ` --${field.name} ${quoted(field.value.trim())}`);
    const shown = form.querySelector("[data-command]");
    shown.textContent = shown.dataset.command + options.join("");
    return shown.textContent;
  };

  document.addEventListener("input", (event) => {
    const form = event.target.closest("form.action");
    if (form) {
      command(form);
    }
  });

  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element ? event.target.closest("[data-copy]") : null;
    if (!button) {
      return;
    }
    try {
      await navigator.clipboard.writeText(command(button.form));
      button.textContent = "Copied";
    } catch {
      // Without the right to the clipboard, the command is selected.
      window.getSelection().selectAllChildren(button.form.querySelector("[data-command]"));
    }
  });

  // A range of the calendar: from one cell to another, both clicked with the Shift key.
  let first = null;
  document.addEventListener("click", (event) => {
    const cell = event.target instanceof Element ? event.target.closest("[data-since]") : null;
    const bounds = [...document.querySelectorAll("[data-range]")];
    if (!cell || !event.shiftKey || bounds.length === 0) {
      return;
    }
    event.preventDefault();
    const cells = [...document.querySelectorAll("[data-since]")];
    const ends = [cells.indexOf(first ?? cell), cells.indexOf(cell)].sort((a, b) => a - b);
    first = first ? null : cell;
    for (const [place, each] of cells.entries()) {
      each.classList.toggle("chosen", place >= ends[0] && place <= ends[1]);
    }
    for (const field of bounds) {
      const [since, until] = ends.map((place) => cells[place].dataset);
      field.value = field.name === "since" ? since.since : until.until;
      command(field.form);
    }
  });

  // A request to Airflow's API as the user; JSON alone, which no other site can send.
  const send = async (method, url, body) => {
    const response = await fetch(url, {
      method,
      credentials: "same-origin",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    const answer = await response.json();
    if (!response.ok) {
      throw new Error(`${response.status}: ${errorText(answer)}`);
    }
    return answer;
  };

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || !form.dataset.runs) {
      return;
    }
    event.preventDefault();
    if (event.submitter && "plan" in event.submitter.dataset) {
      plan(form);
      return;
    }
    const button = form.querySelector("button");
    const message = form.querySelector("[role=alert]");
    button.disabled = true;
    message.textContent = "";
    try {
      const unpause = form.querySelector("[data-unpause]");
      if (unpause) {
        await send("PATCH", unpause.dataset.unpause, { is_paused: false });
      }
      const run = await send("POST", form.dataset.runs, { conf: read(form), logical_date: null });
      leave(form.dataset.page + encodeURIComponent(run.dag_run_id));
      return;
    } catch (error) {
      message.textContent = error.message;
    }
    button.disabled = false;
  });
})();
