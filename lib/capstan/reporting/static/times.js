// Shows times in the zone of Airflow's selector; the page has them in UTC.
(() => {
  "use strict";
  const KEY = "timezone";
  const texts = new WeakMap();
  const UTC = new Set(["UTC", "Etc/UTC", "GMT", "Etc/GMT"]);

  const formatOf = (zone) =>
    new Intl.DateTimeFormat("en-US", {
      timeZone: zone,
      hourCycle: "h23",
      year: "numeric",
      month: "2-digit",
      day: "2-digit",
      hour: "2-digit",
      minute: "2-digit",
      second: "2-digit",
      timeZoneName: "short",
    });

  // As Airflow's UI: the chosen zone, or else that of the browser.
  const current = () => {
    const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
    try {
      const chosen = JSON.parse(window.localStorage.getItem(KEY)) || own;
      formatOf(chosen);
      return chosen;
    } catch {
      return own;
    }
  };

  const show = (element, zone, format) => {
    if (!texts.has(element)) {
      texts.set(element, element.textContent);
    }
    const utc = texts.get(element);
    const at = new Date(element.dateTime);
    if (UTC.has(zone) || Number.isNaN(at.getTime())) {
      element.textContent = utc;
      element.removeAttribute("title");
      return;
    }
    const parts = Object.fromEntries(format.formatToParts(at).map((p) => [p.type, p.value]));
    // As exact as the text is.
    const [, seconds, fraction] = utc.match(/\d\d:\d\d(:\d\d)?(\.\d+)?/) || [];
    const year = parts.year.padStart(4, "0");
    const clock = `${parts.hour}:${parts.minute}${seconds ? `:${parts.second}` : ""}`;
    element.textContent = `${year}-${parts.month}-${parts.day} ${clock}${fraction || ""} ${parts.timeZoneName}`;
    element.title = utc;
  };

  const showAll = (within) => {
    const zone = current();
    const format = formatOf(zone);
    for (const element of within.querySelectorAll("time[datetime]")) {
      show(element, zone, format);
    }
  };

  showAll(document);
  // What is brought up to date comes in UTC, too.
  document.addEventListener("fresh", (event) => showAll(event.detail));
  window.addEventListener("storage", (event) => {
    if (event.key === KEY || event.key === null) {
      showAll(document);
    }
  });
})();
