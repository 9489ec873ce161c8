// Makes a calendar one stop of the Tab key; arrows lead from cell to cell, Home and End to its ends.
// Has a range of it chosen by two clicks with the Shift key, or by dragging.
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

  // A range goes to the forms of the page that take one; without any, none is chosen.
  const bounds = () => [...document.querySelectorAll('[data-range="since"], [data-range="until"]')];
  const cellOf = (target) => (target instanceof Element ? target.closest("[data-since]") : null);

  const choose = (from, to) => {
    const cells = [...document.querySelectorAll("[data-since]")];
    const ends = [cells.indexOf(from), cells.indexOf(to)].sort((a, b) => a - b);
    if (ends[0] < 0) {
      return; // The page was brought up to date meanwhile.
    }
    for (const [place, each] of cells.entries()) {
      each.classList.toggle("chosen", place >= ends[0] && place <= ends[1]);
    }
    const [since, until] = [cells[ends[0]].dataset.since, cells[ends[1]].dataset.until];
    for (const field of bounds()) {
      field.value = field.name === "since" ? since : until;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    }
  };

  // The cell at one end of a range whose other end is still to be clicked.
  let first = null;
  // The newest drag: its first cell, its pointer, whether it goes on, and whether it has chosen a
  // range. A finger scrolls the page unless it rests on the first cell.
  let drag = null;
  const REST = 300;

  const begin = () => {
    drag.chooses = true;
    first = null;
    choose(drag.from, drag.from);
  };

  const end = () => {
    window.clearTimeout(drag?.rest);
    if (drag) {
      drag.goes = false;
    }
  };

  const isPlain = (event) => !event.shiftKey && !event.ctrlKey && !event.metaKey;
  document.addEventListener("pointerdown", (event) => {
    end();
    drag = null;
    const cell = cellOf(event.target);
    if (cell && event.isPrimary && event.button === 0 && isPlain(event) && bounds().length) {
      const touch = event.pointerType === "touch";
      drag = { from: cell, pointer: event.pointerId, touch, goes: true, chooses: false };
      drag.rest = touch ? window.setTimeout(begin, REST) : undefined;
    }
  });
  document.addEventListener("pointermove", (event) => {
    // What a finger touches keeps its events, wherever it moves.
    const cell = cellOf(document.elementFromPoint(event.clientX, event.clientY));
    if (!cell || !drag?.goes || drag.pointer !== event.pointerId) {
      return;
    }
    if (!drag.chooses && !drag.touch && cell !== drag.from) {
      begin();
    }
    if (drag.chooses) {
      choose(drag.from, cell);
    }
  });
  document.addEventListener("pointercancel", end);
  document.addEventListener("pointerup", end);
  document.addEventListener("click", (event) => {
    const cell = cellOf(event.target);
    if (drag?.chooses && event.detail) {
      event.preventDefault(); // The end of a drag opens nothing; keys do.
    } else if (cell && event.shiftKey && bounds().length) {
      event.preventDefault();
      choose(first?.isConnected ? first : cell, cell);
      first = first ? null : cell;
    }
  });
  // Else the browser would drag a link away, scroll, or open a menu.
  const keep = (event) => {
    if (drag?.goes && (drag.chooses || !drag.touch)) {
      event.preventDefault();
    }
  };
  document.addEventListener("dragstart", keep);
  document.addEventListener("touchmove", keep, { passive: false });
  document.addEventListener("contextmenu", keep);

  setUp(document);
  document.addEventListener("fresh", (event) => setUp(event.detail));
})();
