// Draws the prepared figures with Plotly, sorts the table, switches views and colours. Reads the JSON in the page only.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  for (const figure of Object.values(data.figures)) { // what a series has not was left out
    for (const view of figure.views) {
      for (const panel of view.panels) panel.series = panel.series.map((s) => ({ low: [], high: [], name: "", row: "", tone: "", ...s }));
    }
  }
  const root = document.documentElement;
  const small = window.matchMedia("(max-width: 640px)");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const DASHES = ["solid", "dash", "dot", "dashdot"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star"];
  const slots = new Map(); // row in colour -> its place in the palette
  const drawn = new Set(); // figures that were seen

  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (tag, text, cls) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (cls) element.className = cls;
    return element;
  };
  // Plotly reads a few tags in its texts: names are not to be read so
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

  // Theme: what the system says, unless the button was pressed
  const theme = () => root.dataset.theme;
  const setTheme = (name) => {
    root.dataset.theme = name;
    const button = $("#theme");
    button.textContent = name === "dark" ? "Light page" : "Dark page";
    paint();
  };
  const remembered = () => {
    try { return localStorage.getItem("basinet-theme"); } catch { return null; }
  };
  const remember = (name) => {
    try { localStorage.setItem("basinet-theme", name); } catch { /* a browser that keeps nothing */ }
  };

  // Colours
  const palette = () => data.palette[theme()];
  const take = (row) => {
    const used = new Set(slots.values());
    let slot = 0;
    while (used.has(slot)) slot += 1;
    slots.set(row, slot);
  };
  const look = (series) => {
    const colours = palette();
    if (series.tone === "reference") return { colour: data.reference[theme()], dash: "dash", symbol: "circle", on: true };
    if (series.row) {
      if (!slots.has(series.row)) return { colour: data.grey[theme()], dash: "solid", symbol: "circle", on: false };
      const slot = slots.get(series.row);
      const dash = DASHES[Math.floor(slot / colours.length) % DASHES.length];
      return { colour: colours[slot % colours.length], dash, symbol: SYMBOLS[slot % SYMBOLS.length], on: true };
    }
    const member = /^member(\d+)$/.exec(series.tone);
    const slot = member ? Number(member[1]) : data.tones[series.tone] ?? 0;
    return { colour: colours[slot % colours.length], dash: DASHES[Math.floor(slot / colours.length)] ?? "solid", symbol: SYMBOLS[slot % SYMBOLS.length], on: true };
  };
  const faint = (hex, alpha) => hex + Math.round(alpha * 255).toString(16).padStart(2, "0");

  // One panel as Plotly's traces
  const place = (panel) => {
    const at = new Map(panel.y.words.map((word, i) => [word, i]));
    return (y) => (at.size ? y.map((word) => at.get(word)) : y);
  };
  const errors = (middle, series) => ({
    type: "data", symmetric: false, thickness: 1.5, width: 0,
    array: series.high.map((v, i) => v - middle[i]), arrayminus: series.low.map((v, i) => middle[i] - v),
  });
  const traces = (panel) => {
    const drawings = [];
    const words = panel.y.words.length > 0;
    const position = place(panel);
    const format = (axis) => (axis.percent ? ".1%" : ".4~g");
    const order = [...panel.series].sort((a, b) => look(a).on - look(b).on); // grey ones below
    for (const series of order) {
      const { colour, dash, symbol, on } = look(series);
      let y = position(series.y);
      if (words && series.tone === "reference") y = [-0.5, panel.y.words.length - 0.5];
      const name = plain(series.name);
      const value = words ? `%{x:${format(panel.x)}}` : `%{x:.4~g}, %{y:${format(panel.y)}}`;
      const base = { x: series.x, y, name, hovertemplate: `${name}<br>${value}<extra></extra>`, showlegend: false };
      if (series.kind === "bars") {
        drawings.push({ ...base, type: "bar", width: series.width * 0.94, marker: { color: faint(colour, 0.62), line: { width: 0 } } });
      } else if (series.kind === "stack") {
        const who = series.y.map(plain);
        drawings.push({ ...base, type: "bar", orientation: "h", customdata: who, marker: { color: colour },
          hovertemplate: `%{customdata}<br>${name}: ${value}<extra></extra>` });
      } else if (series.kind === "points") {
        const trace = { ...base, type: "scatter", mode: series.labelled ? "markers+text" : "markers",
          marker: { color: colour, size: on ? 10 : 7, symbol }, cliponaxis: false };
        if (series.labelled) Object.assign(trace, { text: [plain(cut(series.name, 24))], textposition: "bottom center", textfont: { size: 11 } });
        if (series.low.length) trace[words ? "error_x" : "error_y"] = { ...errors(words ? series.x : series.y, series), color: colour };
        drawings.push(trace);
      } else {
        if (series.low.length && on) {
          drawings.push({ type: "scatter", x: [...series.x, ...[...series.x].reverse()], y: [...series.high, ...[...series.low].reverse()],
            fill: "toself", fillcolor: faint(colour, 0.14), line: { width: 0 }, mode: "lines", hoverinfo: "skip", showlegend: false });
        }
        const marks = on && series.tone !== "reference" && series.x.length <= 20;
        drawings.push({ ...base, type: "scatter", mode: marks ? "lines+markers" : "lines", marker: { color: colour, size: 6, symbol },
          line: { color: colour, dash, width: series.tone === "reference" ? 1.5 : on ? 2.2 : 1, shape: series.kind === "steps" ? "hv" : "linear" },
          hoverinfo: series.tone === "reference" ? "skip" : undefined, hovertemplate: series.tone === "reference" ? undefined : base.hovertemplate });
      }
    }
    return drawings;
  };

  const logTicks = (values) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const steps = high / low > 300 ? [1] : [1, 2, 5];
    const tickvals = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.ceil(Math.log10(high)); k += 1) tickvals.push(...steps.map((s) => s * 10 ** k));
    return { tickvals, ticktext: tickvals.map((v) => (v >= 1 ? v.toLocaleString("en") : String(Number(v.toPrecision(3))))) };
  };
  const layout = (panel) => {
    const style = getComputedStyle(root);
    const line = style.getPropertyValue("--line").trim();
    const ink = style.getPropertyValue("--soft").trim();
    const card = style.getPropertyValue("--card").trim();
    const full = style.getPropertyValue("--text").trim();
    const axis = (from, most) => {
      const options = { title: { text: plain(from.label), standoff: 8 }, gridcolor: line, linecolor: line, zerolinecolor: line,
        tickcolor: line, automargin: true, fixedrange: small.matches, type: from.log ? "log" : "linear" };
      if (from.percent) options.tickformat = ".1~%";
      if (from.whole) Object.assign(options, { tickformat: ",d" }, most <= 12 ? { dtick: 1 } : {});
      if (from.span) options.range = from.span;
      if (from.log) Object.assign(options, { tickmode: "array", minor: { showgrid: false } }, logTicks(panel.series.flatMap((s) => s.x)));
      if (from.words.length) {
        const names = from.words.map((word) => plain(cut(word, small.matches ? 17 : 30)));
        Object.assign(options, { tickmode: "array", tickvals: from.words.map((_, i) => i), ticktext: names, showgrid: false,
          range: [from.words.length - 0.5, -0.5], zeroline: false, ticks: "" });
      }
      return options;
    };
    const many = panel.y.words.length;
    return {
      height: many ? Math.max(180, 26 * many + 70) : small.matches ? 320 : 380,
      margin: { l: 50, r: 26, t: 14, b: 44 }, paper_bgcolor: card, plot_bgcolor: card,
      font: { family: style.fontFamily, size: small.matches ? 11 : 12.5, color: ink }, barmode: panel.series.some((s) => s.kind === "stack") ? "stack" : "overlay",
      xaxis: axis(panel.x, Math.max(...panel.series.flatMap((s) => s.x))), yaxis: axis(panel.y), hovermode: "closest", dragmode: small.matches ? false : "zoom",
      hoverlabel: { bgcolor: card, bordercolor: line, font: { color: full } },
    };
  };

  // The legend is text of the page: it wraps, and can be selected
  const swatch = (series) => {
    const { colour, dash } = look(series);
    const width = series.kind === "bars" || series.kind === "stack" ? 10 : 2.5;
    const dashes = { solid: "", dash: "7 4", dot: "2 3", dashdot: "7 3 2 3" }[dash];
    const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    picture.setAttribute("width", 22);
    picture.setAttribute("height", 10);
    picture.setAttribute("aria-hidden", "true");
    const dot = series.kind === "points";
    const stroke = document.createElementNS("http://www.w3.org/2000/svg", dot ? "circle" : "line");
    const set = dot
      ? { cx: 16, cy: 5, r: 5, fill: colour }
      : { x1: 0, x2: 22, y1: 5, y2: 5, stroke: colour, "stroke-width": width, "stroke-dasharray": dashes };
    for (const [key, value] of Object.entries(set)) stroke.setAttribute(key, value);
    picture.append(stroke);
    return picture;
  };
  const legend = (view, list) => {
    const seen = new Map();
    let others = 0;
    for (const panel of view.panels) {
      for (const series of panel.series) {
        if (series.row && panel.y.words.length) continue; // its name stands beside it
        if (series.row && !slots.has(series.row)) { others += 1; continue; }
        if (series.name && !seen.has(series.name)) seen.set(series.name, series);
      }
    }
    const rows = [...slots.keys()];
    const rank = (s) => (s.row ? rows.indexOf(s.row) : -1);
    const entries = [...seen.values()].sort((a, b) => rank(a) - rank(b)).map((series) => {
      const item = make("li");
      item.append(swatch(series), series.name);
      return item;
    });
    if (others) entries.push(make("li", `grey: ${others} other row${others > 1 ? "s" : ""}`));
    list.replaceChildren(...entries);
  };

  const viewOf = (figure) => {
    const select = $("select", figure);
    return data.figures[figure.dataset.key].views[select ? select.selectedIndex : 0];
  };
  // Plotly draws in steps: a figure is drawn again only after it was drawn
  const turns = new Map();
  const draw = (figure) => {
    drawn.add(figure);
    turns.set(figure, (turns.get(figure) ?? Promise.resolve()).then(() => drawNow(figure)));
  };
  const drawNow = async (figure) => {
    const view = viewOf(figure);
    const box = $(".panels", figure);
    const places = $$(".panel", box);
    while (places.length > view.panels.length) {
      const extra = places.pop();
      Plotly.purge(extra);
      extra.remove();
    }
    while (places.length < view.panels.length) {
      const added = make("div", undefined, "panel");
      box.append(added);
      places.push(added);
    }
    legend(view, $(".legend", figure));
    $(".note", figure).textContent = view.note;
    if ($("details", figure).open) list(figure);
    const caption = data.figures[figure.dataset.key].title + (view.name ? `: ${view.name}` : "");
    await Promise.all(view.panels.map((panel, i) => {
      places[i].setAttribute("role", "img");
      places[i].setAttribute("aria-label", `${caption}. ${panel.y.label || "rows"} against ${panel.x.label}. The numbers are listed below.`);
      return Plotly.react(places[i], traces(panel), layout(panel), { responsive: true, displayModeBar: false, displaylogo: false });
    }));
    figure.dataset.drawn = view.name || "yes";
  };
  const paint = () => {
    drawn.forEach(draw);
    $$(".board tbody tr").forEach((line) => {
      const slot = slots.get(line.dataset.row);
      const colours = palette();
      $("input", line).style.setProperty("--own", slot === undefined ? "" : colours[slot % colours.length]);
    });
  };

  // The numbers of a figure, for those who cannot see it
  const list = (figure) => {
    const box = $(".numbers", figure);
    const view = viewOf(figure);
    const short = (v) => (typeof v === "number" ? String(Number(v.toPrecision(4))) : v ?? "-");
    const tables = view.panels.map((panel) => {
      const table = make("table");
      const head = make("tr");
      for (const word of ["", panel.x.label || "x", panel.y.label || "row", "from", "to"]) head.append(make("th", word));
      table.append(head);
      for (const series of panel.series.filter((s) => s.tone !== "reference")) {
        series.x.forEach((x, i) => {
          const line = make("tr");
          for (const v of [series.name, short(x), short(series.y[i]), short(series.low[i] ?? ""), short(series.high[i] ?? "")]) line.append(make("td", v));
          table.append(line);
        });
      }
      return table;
    });
    box.replaceChildren(...tables);
  };

  // Examples
  const showExamples = (select) => {
    const gallery = data.gallery;
    const row = gallery.rows[select.value];
    for (const kind of ["uncertain", "wrong"]) {
      const box = document.getElementById(`examples-${kind}`);
      const entries = row[kind] ?? [];
      if (!entries.length) { box.replaceChildren(make("p", "None.", "hint")); continue; }
      box.replaceChildren(gallery.columns.length ? lines(gallery, entries) : cards(gallery, entries));
    }
  };
  const cards = (gallery, entries) => {
    const list = make("ul", undefined, "gallery");
    for (const entry of entries) {
      const item = make("li");
      if (gallery.inputs[entry.number]) {
        const image = make("img");
        image.src = gallery.inputs[entry.number];
        image.alt = `test example ${entry.number}, in truth ${entry.truth}`;
        item.append(image);
      }
      const truth = make("div", "true: ");
      truth.append(make("b", entry.truth));
      item.append(truth, make("div", `said: ${entry.said}`), make("small", about(gallery, entry)));
      list.append(item);
    }
    return list;
  };
  const about = (gallery, entry) => `no. ${entry.number}` + (entry.doubt ? `, ${gallery.doubt} ${entry.doubt}` : "") + `, NLL ${entry.surprise}`;
  const lines = (gallery, entries) => {
    const box = make("div", undefined, "wide");
    box.tabIndex = 0;
    const table = make("table");
    const head = make("tr");
    for (const word of ["no.", "truth", "said", gallery.doubt, "NLL", ...gallery.columns]) head.append(make("th", word));
    table.append(head);
    for (const entry of entries) {
      const line = make("tr");
      const values = gallery.inputs[entry.number] ?? gallery.columns.map(() => "-");
      for (const v of [entry.number, entry.truth, entry.said, entry.doubt ?? "-", entry.surprise, ...values]) line.append(make("td", v));
      table.append(line);
    }
    box.append(table);
    return box;
  };

  // Sorting: what is missing stays at the end
  const sort = (button) => {
    const head = button.closest("th");
    const heads = $$("th", head.parentElement);
    const column = heads.indexOf(head);
    const falling = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((h) => h.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const body = $("tbody", head.closest("table"));
    const key = (line) => {
      const text = line.children[column].dataset.value;
      return column === 0 ? text : text === "" ? null : Number(text);
    };
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      const less = column === 0 ? x.localeCompare(y) : x - y;
      return falling ? -less : less;
    };
    body.append(...$$("tr", body).sort(compare));
  };

  // A table that is wider than the page says that there is more to the right
  const tellMore = () => $$(".wide").forEach((box) => {
    const more = box.scrollWidth - box.clientWidth - box.scrollLeft > 4;
    box.classList.toggle("cut", more);
    const hint = $(".more", box.parentElement);
    if (hint) hint.hidden = box.scrollWidth - box.clientWidth <= 4;
  });

  // Begin
  $("nav details").open = !small.matches;
  data.chosen.forEach(take);
  $$(".board tbody tr").forEach((line) => {
    const box = $("input", line);
    box.checked = slots.has(line.dataset.row);
    box.addEventListener("change", () => {
      if (box.checked) take(line.dataset.row);
      else slots.delete(line.dataset.row);
      paint();
    });
  });
  $$(".board thead button").forEach((button) => button.addEventListener("click", () => sort(button)));
  $("#theme").addEventListener("click", () => {
    const next = theme() === "dark" ? "light" : "dark";
    remember(next);
    setTheme(next);
  });
  dark.addEventListener("change", () => { if (!remembered()) setTheme(dark.matches ? "dark" : "light"); });
  small.addEventListener("change", paint);
  setTheme(remembered() ?? (dark.matches ? "dark" : "light"));

  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries.filter((e) => e.isIntersecting)) {
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "600px" });
  $$("figure[data-key]").forEach((figure) => {
    watcher.observe(figure);
    $("select", figure)?.addEventListener("change", () => draw(figure));
    $("details", figure).addEventListener("toggle", () => { if ($("details", figure).open) list(figure); });
  });
  window.addEventListener("beforeprint", () => $$("figure[data-key]").forEach(draw));
  const examples = $("#examples-row");
  if (examples) {
    examples.addEventListener("change", () => showExamples(examples));
    showExamples(examples);
  }
  $$("button[data-copy]").forEach((button) => {
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy);
      try {
        await navigator.clipboard.writeText(text.textContent);
        button.textContent = "Copied";
      } catch { // a page from a file may not copy: select it for the reader
        getSelection().selectAllChildren(text);
      }
    });
  });
  $$(".wide").forEach((box) => box.addEventListener("scroll", tellMore, { passive: true }));
  window.addEventListener("resize", tellMore);
  tellMore();
  root.dataset.ready = "yes";
})();
