// Makes a calendar one stop of the Tab key; arrows lead from cell to cell, Home and End to its ends.
(() => {
  "use strict";
  const STEPS = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, -1],
    ArrowDown: [0, 1],
  };
  const linksOf = (calendar) => [...calendar.querySelectorAll("a")];

  const place = (link) => {
    const cell = link.querySelector("rect");
    return [Number(cell.getAttribute("x")), Number(cell.getAttribute("y"))];
  };

  const stopAt = (calendar, chosen) => {
    for (const link of linksOf(calendar)) {
      link.setAttribute("tabindex", link === chosen ? "0" : "-1");
    }
  };

  const setUp = (within) => {
    for (const calendar of within.querySelectorAll(".calendar svg")) {
      stopAt(calendar, calendar.querySelector("a"));
    }
  };

  // The nearest link that way; straight ahead before aside.
  const next = (links, from, [right, down]) => {
    const [x, y] = place(from);
    const ahead = links
      .map((link) => {
        const [toX, toY] = place(link);
        const along = (toX - x) * right + (toY - y) * down;
        const aside = Math.abs((toX - x) * down) + Math.abs((toY - y) * right);
        return { link, along, distance: along + 4 * aside };
      })
      .filter((each) => each.along > 0)
      .sort((a, b) => a.distance - b.distance);
    return ahead.length ? ahead[0].link : from;
  };

  document.addEventListener("keydown", (event) => {
    const link = event.target instanceof Element ? event.target.closest(".calendar a") : null;
    if (!link || event.ctrlKey || event.altKey || event.metaKey || event.shiftKey) {
      return;
    }
    const links = linksOf(link.closest("svg"));
    const ends = { Home: links[0], End: links[links.length - 1] };
    const to = STEPS[event.key] ? next(links, link, STEPS[event.key]) : ends[event.key];
    if (to) {
      event.preventDefault();
      to.focus();
    }
  });
  document.addEventListener("focusin", (event) => {
    const link = event.target instanceof Element ? event.target.closest(".calendar a") : null;
    if (link) {
      stopAt(link.closest("svg"), link);
    }
  });
  setUp(document);
  document.addEventListener("fresh", (event) => setUp(event.detail));
})();
