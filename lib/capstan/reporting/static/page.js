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
    const conf = {};
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

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || form.id !== "fill") {
      return;
    }
    event.preventDefault();
    if (event.submitter && "plan" in event.submitter.dataset) {
      plan(form);
      return;
    }
    const button = form.querySelector("button");
    const message = document.getElementById("said");
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
