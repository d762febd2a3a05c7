// Deduplication in Cockpit: what an administrator does daily. It reads and acts through the service's
// control socket, and by the program where the service has no answer; docs/guide/service.md has both.
"use strict";

/* global cockpit, element, size, count, time, duration, figure, row, far, backlog, flow,
   charts */

const SOCKET = "/run/dedupd.sock";
const CONFIGURATION = "/etc/dedupd/dedupd.toml";
const REFRESH_MS = 5000;
const JOBS_SHOWN = 20;
const LEFT_A_PAGE = 50;

let http = null;
const sections = new Map();
/* By the path of the volume: what stays while figures change. */

// --- questions ---------------------------------------------------------------------------------

async function connect() {
  let socket = SOCKET;
  try {
    const text = await cockpit.file(CONFIGURATION, {superuser: "try"}).read();
    const named = /^\s*socket\s*=\s*"([^"]+)"/m.exec(text || "");
    if (named) socket = named[1];
  } catch {
    // It may not be read by this user: the usual place is tried.
  }
  http = cockpit.http(socket, {superuser: "try"});
}

function meant(error, output) {
  try {
    return new Error(JSON.parse(output).error || error.message);
  } catch {
    return error instanceof Error ? error : new Error(error.message || error.problem || String(error));
  }
}

function ask(method, path, body) {
  return new Promise((resolve, reject) => {
    http.request({method, path, body: body === undefined ? "" : JSON.stringify(body)})
      .then(text => resolve(JSON.parse(text)))
      .catch((error, output) => reject(meant(error, output)));
  });
}

function program(command, ...words) {
  return new Promise((resolve, reject) => {
    cockpit.spawn(["dedupd", command, "--json", ...words], {superuser: "try", err: "message"})
      .then(text => resolve(JSON.parse(text)))
      .catch((error, output) => reject(meant(error, output)));
  });
}

// --- words -------------------------------------------------------------------------------------

// A message, in which what stands between backquotes is to be typed.
function message(text) {
  return text.split("`").map((part, at) => at % 2 ? element("code", {}, part) : part);
}

function say(text, bad = false) {
  const place = document.getElementById("said");
  place.className = bad ? "bad" : "";
  place.replaceChildren(...message(text));
}

// A button that keeps its place for the keyboard while what is around it is drawn anew.
function button(text, key, act, attributes = {}) {
  const made = element("button", {type: "button", "data-key": key, ...attributes}, text);
  // Not `disabled`: that would take the keyboard's place away from it.
  made.addEventListener("click", async () => {
    if (made.ariaDisabled === "true") return;
    made.ariaDisabled = "true";
    try {
      const told = await act();
      if (told) say(told);
    } catch (error) {
      say(error.message, true);
    }
    made.ariaDisabled = "false";
    await refresh();
  });
  return made;
}

function keepingFocus(draw) {
  const focused = document.activeElement;
  const key = focused && focused.dataset ? focused.dataset.key : undefined;
  draw();
  if (key === undefined || document.contains(focused)) return;
  const again = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (again) again.focus();
}

// --- acts --------------------------------------------------------------------------------------

function runButton(volume, name, task) {
  const [job, ...options] = task.label.split(" ");
  return button("Run now", `run ${volume.path} ${name}`, async () => {
    const body = {job, path: volume.path, options: options.includes("--full") ? {full: true} : {}};
    return `${task.label} is queued as ${(await ask("POST", "/v1/jobs", body)).id}.`;
  }, {"aria-label": `Run ${task.label} on ${volume.path} now`});
}

function cancelButton(job, where) {
  return button("Cancel", `cancel ${where} ${job.id}`, async () => {
    await ask("DELETE", `/v1/jobs/${encodeURIComponent(job.id)}`);
    return `${job.id} stops at its next safe point; finished work is kept.`;
  }, {"aria-label": `Cancel ${job.id}`});
}

function pauseButton(volume) {
  const action = volume.paused ? "resume" : "pause";
  return button(volume.paused ? "Resume jobs" : "Pause jobs", `pause ${volume.path}`, async () => {
    await ask("POST", `/v1/volumes/${volume.uuid}/${action}`);
    return volume.paused ? "Jobs resumed." : "Jobs paused.";
  });
}

function mountButton(volume) {
  const action = volume.mount.state === "mounted" ? "unmount" : "mount";
  return button(action === "mount" ? "Mount" : "Unmount", `mount ${volume.path}`, async () => {
    if (action === "unmount" && !confirm(`Users of ${volume.path} have no access until it is mounted again. Unmount it?`)) return "";
    await ask("POST", `/v1/volumes/${volume.uuid}/${action}`);
    return `${volume.path} is ${action}ed.`;
  });
}

// --- parts that are drawn anew ------------------------------------------------------------------

function spaceOf(space) {
  if (!space) return [];
  const parts = [];
  if (space.level !== "enough") parts.push(element("p", {class: "bad"}, `Free space: ${space.level}.`));
  if (space.full_s !== null) parts.push(element("p", {}, `At this rate, the file system is full ${time(space.full_s)}.`));
  const gains = space.reclaimable.filter(one => one.bytes).map(one =>
    `${one.job} would free ${size(one.bytes)}` + (one.length_s === null ? "" : ` in about ${duration(one.length_s)}`));
  if (gains.length) parts.push(element("p", {class: "muted"}, `${gains.join("; ")}.`));
  return parts;
}

function figuresOf(volume, samples) {
  const saved = volume.savings, mount = volume.mount;
  const parts = [element("p", {class: mount.state === "mounted" ? "muted" : "bad"},
    mount.state === "mounted" ? `Mounted at ${volume.mountpoint}.` : `${mount.state}: ${mount.problem || "users have no access"}`)];
  if (volume.policy_problem) parts.push(element("p", {class: "bad"}, ...message(volume.policy_problem)));
  if (saved) {
    parts.push(element("dl", {class: "figures"},
      figure("saved", `${size(saved.saved_bytes)} (${(100 * saved.saved_fraction).toFixed(1)} % of ${size(saved.plain_bytes)})`),
      figure("used", size(saved.occupied_bytes)),
      figure("free", `${size(volume.space ? volume.space.free_bytes : saved.free_bytes)} of ${size(saved.size_bytes)}`),
      figure("files optimized", `${count(saved.files_optimized)} of ${count(saved.files)}`)),
    backlog(saved),
    element("p", {class: "muted"}, `Measured ${time(saved.time_s)}.${flow(volume.flow)}`),
    charts(samples, volume.space));
  } else {
    parts.push(element("p", {class: "muted"}, "Not measured yet. The service measures after the first run of a job."));
  }
  return [...parts, ...spaceOf(volume.space)];
}

function tasksOf(volume) {
  const table = element("table", {}, row("th", "task", "last run", "next run", ""));
  for (const [name, task] of Object.entries(volume.tasks)) {
    const last = task.last;
    const how = !last || last.completed ? "" : last.failures ? ", failed" : ", not finished";
    const now = volume.job && volume.job.task === name;
    table.append(row("td", element("span", {}, element("code", {}, task.label), ` ${task.about}`),
      last ? time(last.started_s) + how : "never", now ? "running" : task.off ? "off" : time(task.next_s),
      runButton(volume, name, task)));
  }
  return element("div", {class: "wide", tabindex: "0", role: "region", "aria-label": `Tasks of ${volume.path}`}, table);
}

function actsOf(volume) {
  const acts = element("div", {class: "actions"});
  if (volume.uuid) acts.append(pauseButton(volume), mountButton(volume));
  const job = volume.job ? element("p", {}, `${volume.job.job}: `, far(volume.job), " ", cancelButton(volume.job, "volume")) : "";
  return [job, acts];
}

// --- parts that stay ----------------------------------------------------------------------------

// Opened, it is filled; `fill` gives its content.
function folded(title, fill) {
  const content = element("div", {});
  const made = element("details", {}, element("summary", {}, title), content);
  made.addEventListener("toggle", async () => {
    if (!made.open) return;
    content.replaceChildren(element("p", {class: "muted"}, "…"));
    try {
      content.replaceChildren(...await fill(content));
    } catch (error) {
      content.replaceChildren(element("p", {class: "bad"}, ...message(error.message)));
    }
  });
  return made;
}

const written = value => Array.isArray(value) ? value.join(", ") : String(value);

async function policyOf(path, content) {
  const values = await program("policy", path), grid = element("div", {class: "keys"});
  const {rule: rules = [], ...keys} = values;
  for (const [key, value] of Object.entries(keys)) {
    const id = `policy ${path} ${key}`;
    const input = element("input", {id, value: written(value), "data-was": written(value), autocomplete: "off", spellcheck: "false"});
    const save = button("Save", `save ${id}`, async () => {
      const told = await program("policy", "--", path, key, input.value);
      input.dataset.was = input.value = written(told.changed[key].new);
      return `${key}: ${written(told.changed[key].old)} → ${input.value}; ${told.counts}.`;
    }, {"aria-label": `Save ${key}`});
    input.addEventListener("keydown", event => { if (event.key === "Enter") save.click(); });
    grid.append(element("label", {for: id}, key), input, save);
  }
  const parts = [grid];
  if (rules.length) parts.push(element("h3", {}, "Rules for parts of the tree"),
    element("pre", {}, rules.map(rule => Object.entries(rule).map(([key, value]) => `${key} = ${JSON.stringify(value)}`).join("\n")).join("\n\n")));
  parts.push(element("p", {class: "muted"}, ...message(`To edit the rules, run \`dedupd policy --edit ${path}\`.`)));
  return parts;
}

async function leftOf(path) {
  const table = element("table", {}, row("th", "file", "size", "reason")), more = element("div", {});
  async function page(after) {
    const words = ["jobs", "--left", "--last", String(LEFT_A_PAGE), ...after === null ? [] : ["--after", after]];
    const told = await program(...words, "--", path);
    for (const file of told.left) {
      const line = row("td", file.path, file.size_bytes === null ? "" : size(file.size_bytes), file.reason);
      line.firstChild.className = "name";
      table.append(line);
    }
    more.replaceChildren(...told.next === null ? [] : [button("More", `more ${path}`, () => page(told.next))]);
    return "";
  }
  await page(null);
  const some = table.rows.length > 1;
  return [some ? element("div", {class: "wide"}, table) : element("p", {}, "All files are optimized."), more];
}

async function doctorOf(path) {
  // Where something is wrong it says so in its exit status, too.
  const text = await new Promise((resolve, reject) => {
    cockpit.spawn(["dedupd", "doctor", "--json", "--", path], {superuser: "try", err: "message"})
      .then(resolve).catch((error, output) => output ? resolve(output) : reject(meant(error, output)));
  });
  const told = JSON.parse(text);
  if (told.error) throw new Error(told.error);
  const rank = ["bad", "warning", "fine"];
  const checks = Object.values(told).flat().sort((one, other) => rank.indexOf(one.verdict) - rank.indexOf(other.verdict));
  const table = element("table", {}, row("th", "", "check", "result", "remedy"));
  for (const check of checks) {
    table.append(row("td", element("span", {class: check.verdict}, check.verdict), check.what,
      element("span", {}, ...message(check.found)), element("span", {}, ...message(check.remedy))));
  }
  return [element("div", {class: "wide", tabindex: "0", role: "region", "aria-label": "Checks"}, table)];
}

function sectionOf(volume) {
  let known = sections.get(volume.path);
  if (!known) {
    const acts = element("div", {}), drawn = element("div", {}), tasks = element("div", {});
    const whole = element("section", {"data-path": volume.path}, element("h2", {}, volume.path), acts, drawn, tasks,
      folded("Policy", content => policyOf(volume.path, content)),
      folded("Files that are not optimized", () => leftOf(volume.path)),
      folded("Checks", () => doctorOf(volume.path)));
    known = {whole, acts, drawn, tasks};
    sections.set(volume.path, known);
  }
  return known;
}

// --- the page -----------------------------------------------------------------------------------

function jobsOf(list) {
  const table = element("table", {}, row("th", "started", "job", "volume", "took", "outcome", ""));
  for (const job of [...list.running, ...list.waiting]) {
    table.append(row("td", job.started_s ? time(job.started_s) : "queued", job.job, job.path, "", far(job), cancelButton(job, "jobs")));
  }
  for (const run of list.history) {
    table.append(row("td", time(run.started_s), run.job, run.path, duration(run.resources.wall_s), run.outcome, ""));
  }
  return [element("h2", {}, "Jobs"),
    element("div", {class: "wide", tabindex: "0", role: "region", "aria-label": "Jobs"}, table)];
}

function problemsOf(problems) {
  const place = document.getElementById("problems");
  place.hidden = problems.length === 0;
  place.replaceChildren(element("h2", {}, problems.length === 1 ? "1 problem" : `${problems.length} problems`),
    element("ul", {}, ...problems.map(problem => element("li", {}, ...message(problem)))));
}

function noService(error) {
  document.getElementById("status").textContent = `The service does not respond: ${error.message}`;
  keepingFocus(() => {
    sections.clear();
    document.getElementById("jobs").hidden = true;
    problemsOf([]);
    document.getElementById("volumes").replaceChildren(element("section", {},
      element("p", {}, "The service is not running or not accessible. Without it, volumes are not mounted automatically and jobs do not run. If it is running, turn on “Administrative access” at the top."),
      button("Start the service now and after each restart", "start", async () => {
        await cockpit.spawn(["systemctl", "enable", "--now", "dedupd"], {superuser: "require", err: "message"});
        return "The service is running.";
      }, {class: "first"})));
  });
  document.body.dataset.state = "failed";
}

async function refresh() {
  let service, volumes, list, samples;
  try {
    [service, volumes, list] = await Promise.all(
      [ask("GET", "/v1/service"), ask("GET", "/v1/volumes"), ask("GET", `/v1/jobs?last=${JOBS_SHOWN}`)]);
    samples = await Promise.all(volumes.map(
      volume => volume.uuid ? ask("GET", `/v1/volumes/${volume.uuid}/savings?last=1000`) : []));
  } catch (error) {
    noService(error);
    return;
  }
  document.getElementById("status").textContent = `dedupd ${service.version}: ${service.status}`;
  keepingFocus(() => {
    problemsOf(service.problems);
    const shown = volumes.map((volume, number) => {
      const known = sectionOf(volume);
      known.acts.replaceChildren(...actsOf(volume));
      known.drawn.replaceChildren(...figuresOf(volume, samples[number]));
      known.tasks.replaceChildren(Object.keys(volume.tasks).length ? tasksOf(volume) : "");
      return known.whole;
    });
    const place = document.getElementById("volumes");
    if (!volumes.length) {
      place.replaceChildren(element("section", {}, element("p", {}, ...message("There is no volume yet. To create one, run `dedupd setup PATH`."))));
    } else if (shown.length !== place.children.length || shown.some((one, at) => place.children[at] !== one)) {
      place.replaceChildren(...shown);
    }
    const jobs = document.getElementById("jobs");
    jobs.hidden = false;
    jobs.replaceChildren(...jobsOf(list));
  });
  document.body.dataset.state = "ready";
}

// Cockpit's own choice of colours, or the browser's.
function dress() {
  const chosen = localStorage.getItem("shell:style") || "auto";
  const dark = chosen === "dark" || (chosen === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

async function begin() {
  dress();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
  window.addEventListener("storage", dress);
  window.addEventListener("cockpit-style", dress);
  await cockpit.transport.wait(() => {});
  await connect();
  await refresh();
  setInterval(() => { if (!document.hidden) refresh(); }, REFRESH_MS);
}

begin();
