// What the page of the service and the module of Cockpit draw alike. All text goes in as text.

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < units.length - 1) { bytes /= 1024; unit++; }
  return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
}

const count = value => value.toLocaleString("en");

function time(seconds) {
  const at = new Date(seconds * 1000), away = seconds - Date.now() / 1000;
  const clock = at.toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"});
  const day = at.toLocaleDateString([], {weekday: "short"});
  if (Math.abs(away) < 60) return "now";
  if (Math.abs(away) < 3600) return away < 0 ? `${Math.round(-away / 60)} min ago` : `in ${Math.round(away / 60)} min`;
  if (at.toDateString() === new Date().toDateString()) return `today ${clock}`;
  const days = Math.round(Math.abs(away) / 86400);
  if (days <= 7) return away < 0 ? `${day} ${clock}` : `in ${Math.max(1, days)} days (${day} ${clock})`;
  return at.toLocaleDateString();
}

function duration(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function figure(name, value) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value));
}

function row(kind, ...cells) {
  return element("tr", {}, ...cells.map(cell => element(kind, {}, cell)));
}

function drawn(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Points are {time_s, bytes}; those of `coming`, a forecast, are dashed. `share`: of the width of the screen.
function chart(what, points, share, coming = []) {
  if (points.length < 2) {
    return element("p", {class: "muted"}, "The chart starts with the second measurement.");
  }
  // On a narrow screen the same letters need more of the width.
  const WIDTH = Math.max(360, share * Math.min(1000, 1.2 * window.innerWidth));
  const LEFT = 90, RIGHT = WIDTH - 10, TOP = 15, BOTTOM = 170;
  const svg = drawn("svg", {viewBox: `0 0 ${WIDTH} 200`, role: "img"});
  const seen = points[points.length - 1], all = [...points, ...coming];
  const first = points[0].time_s, last = all[all.length - 1].time_s;
  const most = Math.max(1, ...all.map(point => point.bytes));
  const x = seconds => LEFT + (RIGHT - LEFT) * (seconds - first) / Math.max(1e-9, last - first);
  const y = bytes => BOTTOM - (BOTTOM - TOP) * Math.max(0, bytes) / most;
  svg.append(drawn("title", {}, `${what} from ${new Date(first * 1000).toLocaleString()} to ` +
    `${new Date(seen.time_s * 1000).toLocaleString()}: ${size(points[0].bytes)} to ${size(seen.bytes)}`));
  for (const part of [0, .5, 1]) {
    svg.append(drawn("line", {class: "axis", x1: LEFT, x2: RIGHT, y1: y(part * most), y2: y(part * most)}),
      drawn("text", {x: LEFT - 8, y: y(part * most) + 4, "text-anchor": "end"}, size(part * most)));
    const at = new Date((first + part * (last - first)) * 1000);
    svg.append(drawn("text", {x: x(at / 1000), y: BOTTOM + 20,
      "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle"},
      last - first < 2 * 86400 ? at.toLocaleTimeString() : at.toLocaleDateString()));
  }
  const line = some => some.map(point => `${x(point.time_s).toFixed(1)},${y(point.bytes).toFixed(1)}`).join(" ");
  svg.append(drawn("polygon", {class: "area", points: `${LEFT},${BOTTOM} ${line(points)} ${x(seen.time_s).toFixed(1)},${BOTTOM}`}),
    drawn("polyline", {class: "line", points: line(points)}));
  if (coming.length) svg.append(drawn("polyline", {class: "line coming", points: line([seen, ...coming])}));
  return svg;
}

// What was saved by each measurement, and what was free; the rest of it is what the service foresees.
function savingsChart(samples, share) {
  return chart("Saved", samples.map(one => ({time_s: one.time_s, bytes: one.saved_bytes})), share);
}

const FORECAST_S = 30 * 86400;

function freeChart(samples, space, share) {
  const points = samples.map(one => ({time_s: one.time_s, bytes: one.free_bytes}));
  const rate = space ? space.taken_bytes_per_s : null;
  if (!points.length || rate === null) return chart("Free", points, share);
  const now_s = Date.now() / 1000;
  points.push({time_s: now_s, bytes: space.free_bytes});
  const until_s = Math.min(now_s + FORECAST_S, space.full_s === null ? Infinity : space.full_s);
  const then = Math.min(space.total_bytes, Math.max(0, space.free_bytes - rate * (until_s - now_s)));
  return chart("Free", points, share, [{time_s: until_s, bytes: then}]);
}

// Both beside each other, or one below the other where the screen is narrow.
function charts(samples, space) {
  const share = window.innerWidth > 940 ? .5 : 1;
  return element("div", {class: "charts"},
    element("div", {}, element("h3", {}, "Saved"), savingsChart(samples, share)),
    element("div", {}, element("h3", {}, "Free space and forecast (dashed)"), freeChart(samples, space, share)));
}

function far(job) {
  const {done = 0, total = 0, phase = ""} = job.progress;
  const parts = [element("span", {}, job.waits_for || phase || job.state)];
  if (total) {
    const more = job.to_go_s === null ? "" : `, about ${duration(job.to_go_s)} remaining`;
    parts.push(" ", element("progress", {max: total, value: done}), ` ${Math.floor(100 * done / total)} %${more}`);
  }
  return element("span", {}, ...parts);
}

const REASONS = [
  ["waiting", "pending for the next run"], ["young", "too young (min_age)"],
  ["saves_little", "skipped: savings too small"], ["small", "below min_size"], ["excluded", "excluded"], ["other", "skipped for other reasons"],
];

function backlog(saved) {
  const found = element("div", {});
  const bytes = REASONS.reduce((sum, [kind]) => sum + saved[`${kind}_bytes`], saved.optimized_bytes);
  const share = part => `width: ${(100 * part / Math.max(1, bytes)).toFixed(2)}%`;
  const bar = element("div", {class: "bar", role: "img", "aria-label": "Share of bytes that are optimized"});
  const done = element("span", {class: "done"}), waits = element("span", {class: "waits"});
  done.style.cssText = share(saved.optimized_bytes);
  waits.style.cssText = share(saved.waiting_bytes + saved.young_bytes);
  bar.append(done, waits);
  const told = REASONS.filter(([kind]) => saved[`${kind}_files`]).map(([kind, text]) =>
    `${count(saved[`${kind}_files`])} files (${size(saved[`${kind}_bytes`])}) ${text}`);
  found.append(bar, element("p", {class: "muted"}, told.length ? told.join("; ") : "No files pending."));
  return found;
}

function flow(seen) {
  if (!seen) return "";
  const days = Math.max(1, Math.round((seen.until_s - seen.since_s) / 86400));
  return ` In the last ${days === 1 ? "day" : `${days} days`}, ${size(seen.in_bytes_per_day)} per day became eligible, ` +
    `and ${size(seen.out_bytes_per_day)} per day were optimized.`;
}
