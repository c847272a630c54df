"use strict";
(() => {
  const every = (place, what) => Array.from(place.querySelectorAll(what));

  function themes() {
    const button = document.querySelector("[data-theme-button]");
    const kinds = ["auto", "light", "dark"];
    button.addEventListener("click", () => {
      const next = kinds[(kinds.indexOf(button.dataset.themeButton) + 1) % kinds.length];
      button.dataset.themeButton = next;
      button.textContent = `Theme: ${next}`;
      if (next === "auto") delete document.documentElement.dataset.theme;
      else document.documentElement.dataset.theme = next;
    });
  }

  function tabs() {
    const buttons = every(document, "[role=tab]");
    const show = (chosen) => {
      for (const button of buttons) {
        const on = button === chosen;
        button.setAttribute("aria-selected", on);
        button.tabIndex = on ? 0 : -1;
        document.getElementById(button.getAttribute("aria-controls")).hidden = !on;
      }
      window.dispatchEvent(new Event("resize"));
    };
    buttons.forEach((button, number) => {
      button.addEventListener("click", () => show(button));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = buttons[(number + step + buttons.length) % buttons.length];
        show(next);
        next.focus();
      });
    });
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const value = (row, column) => {
      const cell = row.cells[column];
      const number = cell.dataset.value;
      return number === undefined ? cell.textContent.trim() : number === "" ? -Infinity : Number(number);
    };
    every(table, "th").forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      // Of times and bytes one wants the large ones; the number of a layer is an order, not an amount.
      const largest = head.classList.contains("number") && head.textContent.trim() !== "#";
      button.addEventListener("click", () => {
        const sorted = head.getAttribute("aria-sort");
        const up = sorted ? sorted !== "ascending" : !largest;
        every(table, "th").forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = Array.from(body.rows).map((row) => [value(row, column), row]);
        rows.sort(([a], [b]) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true })));
        if (!up) rows.reverse();
        body.append(...rows.map(([, row]) => row));
      });
    });
  }

  function filterable(input) {
    const rows = Array.from(document.getElementById(input.dataset.filter).tBodies[0].rows);
    const count = input.nextElementSibling;
    const texts = rows.map((row) => row.textContent.toLowerCase());
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      let left = 0;
      rows.forEach((row, number) => {
        row.hidden = !texts[number].includes(wanted);
        left += !row.hidden;
      });
      count.textContent = wanted ? `${left} of ${rows.length}` : "";
    });
  }

  // Findings of one severity, or all.
  function severities(run) {
    const buttons = every(run, "[data-severity]");
    for (const button of buttons) {
      button.addEventListener("click", () => {
        for (const other of buttons) other.setAttribute("aria-pressed", other === button);
        for (const group of every(run, "details.group")) {
          group.hidden = Boolean(button.dataset.severity) && group.dataset.level !== button.dataset.severity;
        }
      });
    }
  }

  const MOST_HINTS = 6; // more would cover the drawing

  // What a browser shows after a second, and not at all on a touch screen or to the keyboard, stands at once.
  function hints() {
    const box = document.createElement("div");
    box.className = "hint no-print";
    box.hidden = true;
    document.body.append(box);
    const text = (node) => {
      const title = Array.from(node.children).find((child) => child.localName === "title");
      if (title) {
        node.dataset.hint = title.textContent;
        node.setAttribute("aria-label", title.textContent);
        title.remove();
      }
      return node.dataset.hint;
    };
    const find = (from) => {
      for (let node = from; node && node.ownerSVGElement; node = node.parentElement) if (text(node)) return node;
      return null;
    };
    // Points may lie on one another: all of them are told, the topmost first, and a drawing behind its own part is not.
    const under = (event) => {
      if (!event.target.ownerSVGElement) return [];
      const hit = document.elementsFromPoint(event.clientX, event.clientY).filter((node) => node.ownerSVGElement);
      const found = [...new Set([event.target, ...hit].map(find).filter(Boolean))];
      return found.filter((node) => !found.some((other) => other !== node && node.contains(other)));
    };
    const show = (event) => {
      const words = [...new Set(under(event).map((node) => node.dataset.hint))];
      box.hidden = !words.length;
      if (box.hidden) return;
      const rest = words.length - MOST_HINTS;
      const text = words.slice(0, MOST_HINTS).concat(rest > 0 ? [`and ${rest} more here`] : []).join("\n\n");
      if (box.textContent !== text) box.textContent = text;
      box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 8))}px`;
      box.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - box.offsetHeight - 8))}px`;
    };
    document.addEventListener("pointerover", show);
    document.addEventListener("pointermove", show);
  }

  // "/" leads to the search of the run that is shown, wherever one is on the page.
  function anywhere() {
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest("input, textarea, select")) return;
      const search = every(document, "input.find, input[data-filter]").find((input) => input.checkVisibility());
      if (!search) return;
      event.preventDefault();
      search.focus();
      search.scrollIntoView({ block: "center" });
    });
  }

  function fill(panel, layer) {
    const line = (tag, text, parent) => {
      const node = document.createElement(tag);
      node.textContent = text;
      parent.append(node);
      return node;
    };
    panel.replaceChildren();
    line("h3", layer.name, panel);
    for (const found of layer.findings) {
      const box = line("div", "", panel);
      box.className = "finding";
      line("b", found.title, box).className = found.severity;
      line("p", found.reason, box);
      line("p", `Fix: ${found.fix}`, box).className = "fix";
    }
    const facts = line("dl", "", panel);
    for (const [name, text] of layer.facts) {
      line("dt", name, facts);
      line("dd", text, facts);
    }
    for (const [title, lines] of layer.lists) {
      line("strong", title, panel);
      const list = line("ul", "", panel);
      lines.forEach((text) => line("li", text, list));
    }
    panel.scrollTop = 0;
  }

  function explorer(run) {
    const stage = run.querySelector(".stage");
    if (!stage) return;
    const layers = JSON.parse(run.querySelector("script[type='application/json']").textContent);
    const graph = stage.querySelector("svg");
    const panel = run.querySelector(".details");
    const [, , width, height] = graph.getAttribute("viewBox").split(" ").map(Number);
    const boxes = new Map(every(graph, "[data-layer]").map((box) => [Number(box.dataset.layer), box]));
    const order = Array.from(boxes.keys());
    const numbers = (text) => text.match(/-?[\d.]+/g).map(Number);
    const place = (box) => numbers(box.getAttribute("transform"));
    let zoom = 1;
    let folded = null;
    let chosen = null;
    let hits = [];

    function scale(next, x = stage.clientWidth / 2, y = stage.clientHeight / 2) {
      unfold();
      next = Math.min(4, Math.max(0.02, next));
      const left = (stage.scrollLeft + x) / zoom;
      const top = (stage.scrollTop + y) / zoom;
      zoom = next;
      graph.setAttribute("width", width * zoom);
      graph.setAttribute("height", height * zoom);
      stage.scrollTo(left * zoom - x, top * zoom - y);
      look();
    }
    const fitWidth = () => Math.min(1, stage.clientWidth / width);
    const fitAll = () => Math.min(fitWidth(), stage.clientHeight / height);

    // A long engine seen as a whole would be a thin strip: it is cut into columns, read downwards, then to the right.
    const gap = 60;
    function cuts(count) {
      const tops = [...new Set(order.map((number) => place(boxes.get(number))[1]))].sort((a, b) => a - b);
      const inner = Array.from({ length: count - 1 }, (_, at) => tops.find((top) => top >= ((at + 1) * height) / count));
      const found = inner.filter((top) => top !== undefined).map((top) => top - 18);
      return [0, ...new Set(found), height];
    }
    function span(part) {
      if (part.hasAttribute("points")) {
        const heights = numbers(part.getAttribute("points")).filter((_, at) => at % 2);
        return [Math.min(...heights), Math.max(...heights)];
      }
      const top = part.hasAttribute("transform") ? place(part)[1] : Number(part.getAttribute("y"));
      return [top, top + (part.hasAttribute("transform") ? 62 : 0)];
    }
    function svg(tag, facts, parent) {
      const node = document.createElementNS(graph.namespaceURI, tag);
      for (const [name, value] of Object.entries(facts)) node.setAttribute(name, value);
      parent.append(node);
      return node;
    }
    function unfold() {
      if (!folded) return;
      folded.remove();
      folded = null;
      stage.classList.remove("folded");
    }
    function fold(across = stage.clientWidth, down = stage.clientHeight) {
      unfold();
      const size = (count) => Math.min(1, across / (count * (width + gap)), (down * count) / height);
      const counts = Array.from({ length: 60 }, (_, at) => at + 1);
      const count = counts.reduce((best, next) => (size(next) > size(best) ? next : best));
      if (size(count) < 1.5 * size(1)) return false;
      const edges = cuts(count);
      const bands = edges.slice(1).map((end, at) => [edges[at], end]);
      const tall = Math.max(...bands.map(([start, end]) => end - start));
      const wide = bands.length * (width + gap);
      const share = Math.min(1, across / wide, down / tall);
      folded = svg("svg", { class: `${graph.getAttribute("class")} fold`, viewBox: `0 0 ${wide} ${tall}`, width: wide * share, height: tall * share }, stage);
      const sheet = graph.querySelector("g");
      const parts = Array.from(sheet.children, (part) => [part, ...span(part)]);
      bands.forEach(([start, end], at) => {
        const column = svg("svg", { x: at * (width + gap) + gap / 2, y: 0, width, height: end - start, viewBox: `0 ${start} ${width} ${end - start}` }, folded);
        const copy = svg("g", { transform: sheet.getAttribute("transform") }, column);
        copy.append(...parts.filter(([, top, bottom]) => bottom >= start - 12 && top <= end).map(([part]) => part.cloneNode(true)));
      });
      stage.classList.add("folded");
      stage.scrollTo(0, 0);
      look();
      return true;
    }
    const showAll = () => fold() || scale(fitAll());

    function reveal(box) {
      const [x, y] = place(box);
      stage.scrollTo((x + 108) * zoom - stage.clientWidth / 2, (y + 35) * zoom - stage.clientHeight / 2);
    }
    function choose(number, { move = true } = {}) {
      const box = boxes.get(number);
      if (!box) return;
      if (chosen !== null) boxes.get(chosen).classList.remove("chosen");
      chosen = number;
      box.classList.add("chosen");
      if (folded || zoom < 0.35) scale(0.8);
      if (move) reveal(box);
      fill(panel, layers[number]);
    }
    run.choose = (number) => {
      choose(number);
      run.querySelector(".explorer").scrollIntoView({ block: "center" });
      stage.focus({ preventScroll: true });
    };

    const search = run.querySelector("input[type=search].find");
    const count = run.querySelector(".count");
    search.addEventListener("input", () => {
      const wanted = search.value.trim().toLowerCase();
      hits.forEach((number) => boxes.get(number).classList.remove("hit"));
      hits = wanted ? order.filter((number) => layers[number].find.includes(wanted)) : [];
      hits.forEach((number) => boxes.get(number).classList.add("hit"));
      graph.classList.toggle("searching", wanted !== "");
      if (folded) fold();
      count.textContent = wanted ? `${hits.length} of ${order.length} ${run.dataset.kind}s` : "";
    });
    search.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !hits.length) return;
      const at = hits.indexOf(chosen) + (event.shiftKey ? -1 : 1);
      choose(hits[(at + hits.length) % hits.length]);
    });

    every(run, "[data-zoom]").forEach((button) =>
      button.addEventListener("click", () => {
        const how = button.dataset.zoom;
        if (how === "all") showAll();
        else scale(how === "width" ? fitWidth() : zoom * Number(how));
      }),
    );
    stage.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const frame = stage.getBoundingClientRect();
      scale(zoom * Math.exp(-event.deltaY / 300), event.clientX - frame.left, event.clientY - frame.top);
    }, { passive: false });

    stage.addEventListener("keydown", (event) => {
      const at = chosen === null ? -1 : order.indexOf(chosen);
      const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      if (event.key === "+" || event.key === "=") scale(zoom * 1.25);
      else if (event.key === "-") scale(zoom * 0.8);
      else if (event.key === "0") showAll();
      else if (event.key === "Home") choose(order[0]);
      else if (event.key === "End") choose(order[order.length - 1]);
      else if (step && !event.shiftKey) choose(order[Math.min(order.length - 1, Math.max(0, at + step))]);
      else return;
      event.preventDefault();
    });

    let drag = null;
    stage.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      drag = { x: event.clientX, y: event.clientY, left: stage.scrollLeft, top: stage.scrollTop, moved: false };
    });
    window.addEventListener("pointermove", (event) => {
      if (!drag) return;
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (Math.hypot(dx, dy) > 4) drag.moved = true;
      if (!drag.moved) return;
      stage.classList.add("dragging");
      stage.scrollTo(drag.left - dx, drag.top - dy);
    });
    window.addEventListener("pointerup", () => {
      stage.classList.remove("dragging");
      if (drag && drag.moved) setTimeout(() => { drag = null; });
      else drag = null;
    });
    stage.addEventListener("click", (event) => {
      if (drag && drag.moved) return;
      const box = event.target.closest("[data-layer]");
      if (box) choose(Number(box.dataset.layer), { move: folded !== null });
    });

    const overview = run.querySelector(".overview");
    const frame = overview.querySelector(".window");
    function look() {
      if (folded) {
        frame.setAttribute("y", 0);
        frame.setAttribute("height", 1000);
        return;
      }
      const share = stage.clientHeight / Math.max(1, graph.clientHeight || height * zoom);
      frame.setAttribute("y", 1000 * Math.min(1, stage.scrollTop / Math.max(1, stage.scrollHeight)));
      frame.setAttribute("height", 1000 * Math.min(1, share));
    }
    overview.addEventListener("click", (event) => {
      if (folded) scale(0.8);
      const share = event.offsetY / overview.clientHeight;
      stage.scrollTop = share * stage.scrollHeight - stage.clientHeight / 2;
    });
    stage.addEventListener("scroll", look, { passive: true });
    const start = () => {
      if (!stage.clientWidth || stage.dataset.ready) return;
      stage.dataset.ready = "yes";
      scale(Math.max(0.5, fitWidth()));
      // The middle of a wide drawing may be empty at the top: the first layer is where one begins to read.
      stage.scrollTo((place(boxes.get(order[0]))[0] + 108) * zoom - stage.clientWidth / 2, 0);
      look();
    };
    window.addEventListener("resize", () => {
      start();
      if (folded) fold();
      look();
    });
    // A page on paper is about as wide as ten of these inches, and six and a half high.
    let before = false;
    window.addEventListener("beforeprint", () => {
      before = folded !== null;
      fold(1000, 650);
    });
    window.addEventListener("afterprint", () => (before ? fold() : unfold()));
    start();
  }

  themes();
  tabs();
  every(document, "table.sortable").forEach(sortable);
  every(document, "input[data-filter]").forEach(filterable);
  hints();
  anywhere();
  for (const run of every(document, ".run")) {
    severities(run);
    every(run, ".drawn").forEach(explorer);
    run.addEventListener("click", (event) => {
      const link = event.target.closest("[data-goto]");
      const engine = run.querySelector(".drawn[data-kind=layer]");
      if (link && engine) engine.choose(Number(link.dataset.goto));
    });
  }
})();
