// Follows the surrounding Airflow page's theme, opens links outside the frame, submits the form, and
// brings a page up to date while something runs.
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

  // A bar says that the following page is on its way.
  window.addEventListener("beforeunload", () => {
    root.dataset.loading = "";
  });
  window.addEventListener("pageshow", () => {
    delete root.dataset.loading;
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

  // The id and the note of a run that its page has a title for. Ids may have few other characters,
  // and no two dots.
  const named = (form) => {
    if (!form.dataset.title) {
      return {};
    }
    const plain = form.dataset.title.replaceAll(" ", "-").replaceAll("..", "--");
    const title = plain.replace(/[^A-Za-z0-9_.~:+-]/g, "_");
    const id = `${title.slice(0, 150)}__${new Date().toISOString()}`;
    return { dag_run_id: id, note: form.dataset.note.slice(0, 1000) };
  };

  // What a plan was shown for is what may be triggered.
  document.addEventListener("input", (event) => {
    const field = event.target;
    const form = field.form;
    if (!form || !form.querySelector("[data-plan]")) {
      return;
    }
    if (field.name === "replay") {
      window.location.assign(`${window.location.pathname}?${new URLSearchParams({ replay: field.value })}`);
      return;
    }
    form.querySelector("button").disabled = true;
    form.querySelector("[role=alert]").textContent = "The plan is of other values: plan again.";
  });

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || !(form.dataset.runs || form.dataset.decide)) {
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
      if (form.dataset.decide) {
        await send("PATCH", form.dataset.decide, {
          chosen_options: [event.submitter.value],
          params_input: { reason: form.elements.reason.value },
        });
        window.location.reload();
        return;
      }
      const unpause = form.querySelector("[data-unpause]");
      if (unpause) {
        await send("PATCH", unpause.dataset.unpause, { is_paused: false });
      }
      const conf = read(form);
      const run = await send("POST", form.dataset.runs, { conf, logical_date: null, ...named(form) });
      leave(form.dataset.page + encodeURIComponent(run.dag_run_id));
      return;
    } catch (error) {
      message.textContent = error.message;
    }
    button.disabled = false;
  });

  // Whether a part of the page has what a person is about to use: its focus, a selection, a range
  // that is chosen, a form that is filled in or sent.
  const inUse = (part) => {
    const selected = window.getSelection();
    const chosen = selected && !selected.isCollapsed && selected.containsNode(part, true);
    const changed = (field) => {
      if (field.options) {
        const usual = [...field.options].findIndex((option) => option.defaultSelected);
        return field.selectedIndex !== Math.max(usual, 0);
      }
      return field.checked !== field.defaultChecked || field.value !== field.defaultValue;
    };
    return (
      chosen ||
      part.contains(document.activeElement) ||
      part.querySelector(".chosen, button:disabled") ||
      [...part.querySelectorAll("input, select, textarea")].some(changed)
    );
  };

  // A part as the server has it now, opened and scrolled as the one that is shown.
  const asShown = (part, fresh) => {
    const opened = fresh.querySelectorAll("details");
    part.querySelectorAll("details").forEach((each, i) => opened[i]?.toggleAttribute("open", each.open));
    return fresh;
  };

  const scrolled = (part) => [...part.querySelectorAll(".wide, .plot")].map((each) => each.scrollLeft);

  const update = (main, fresh) => {
    const shown = [...main.children];
    // Sections have names; what has none is known by its place among those.
    const name = (part, i) => part.getAttribute("aria-labelledby") || `${part.tagName} ${i}`;
    const named = new Map(shown.map((part, i) => [name(part, i), part]));
    const next = [...fresh.children].map((part, i) => {
      const old = named.get(name(part, i));
      if (!old) {
        return part;
      }
      if (inUse(old) || old.isEqualNode(asShown(old, part))) {
        return old;
      }
      const places = scrolled(old);
      old.replaceWith(part);
      part.querySelectorAll(".wide, .plot").forEach((each, j) => (each.scrollLeft = places[j] || 0));
      return part;
    });
    for (const part of [...main.children]) {
      if (!next.includes(part) && !inUse(part)) {
        part.remove();
      }
    }
    next.forEach((part, i) => {
      if (main.children[i] !== part) {
        main.insertBefore(part, main.children[i] || null);
      }
    });
  };

  // Only the server knows whether anything still runs: it says so by `data-refresh`, in seconds.
  const watch = () => {
    const main = document.querySelector("main[data-refresh]");
    if (main) {
      window.setTimeout(refresh, 1000 * Number(main.dataset.refresh));
    }
  };

  const refresh = async () => {
    if (document.hidden) {
      document.addEventListener("visibilitychange", refresh, { once: true });
      return;
    }
    const main = document.querySelector("main");
    try {
      const headers = { "X-Capstan-Follows": "1" };
      const response = await fetch(window.location.href, { credentials: "same-origin", headers });
      if (response.status >= 400 && response.status < 500) {
        return;
      }
      const text = response.ok ? await response.text() : "";
      const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
      if (fresh) {
        document.adoptNode(fresh);
        // Other scripts change a page once it is loaded: what is compared has to be changed, too.
        document.dispatchEvent(new CustomEvent("fresh", { detail: fresh }));
        update(main, fresh);
        main.removeAttribute("data-refresh");
        Object.assign(main.dataset, fresh.dataset);
      }
    } catch {
      // The server may be back at the next time.
    }
    watch();
  };

  document.addEventListener("DOMContentLoaded", watch);
})();
