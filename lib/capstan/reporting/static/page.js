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

  // A range of the calendar: from the cell clicked last to one clicked with the Shift key.
  let first = null;
  document.addEventListener("click", (event) => {
    const cell = event.target instanceof Element ? event.target.closest("[data-since]") : null;
    if (!cell || !document.querySelector("[data-range]")) {
      return;
    }
    if (!event.shiftKey) {
      first = cell;
      return;
    }
    event.preventDefault();
    const cells = [...document.querySelectorAll("[data-since]")];
    const ends = [cells.indexOf(first), cells.indexOf(cell)].filter((place) => place >= 0).sort((a, b) => a - b);
    const chosen = cells.slice(ends[0], ends[ends.length - 1] + 1);
    for (const each of cells) {
      each.classList.toggle("chosen", chosen.includes(each));
    }
    for (const field of document.querySelectorAll("[data-range]")) {
      const bound = field.name === "since" ? chosen[0] : chosen[chosen.length - 1];
      field.value = bound.dataset[field.name];
      command(field.form);
    }
  });

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
      const response = await fetch(form.dataset.runs, {
        method: "POST",
        credentials: "same-origin",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ conf: read(form), logical_date: null }),
      });
      const answer = await response.json();
      if (response.ok) {
        leave(form.dataset.page + encodeURIComponent(answer.dag_run_id));
        return;
      }
      message.textContent = `${response.status}: ${errorText(answer)}`;
    } catch (error) {
      message.textContent = String(error);
    }
    button.disabled = false;
  });
})();
