'use strict';
// The report: what the page shows, decoded, and figures in words.

const report = JSON.parse(document.getElementById('data').textContent);

// Integers beyond 2^53 come as strings. Drawing takes the nearest number; words keep all digits.
const grouped = (n) => BigInt(n).toLocaleString('en');

function human(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return (unit === 0 ? `${Math.round(bytes)}` : bytes.toFixed(2)) + ` ${units[unit]}`;
}

// A tick of an axis: as `human`, without zeros that say nothing.
const short = (bytes) => human(bytes).replace('.00 ', ' ').replace(/(\.\d)0 /, '$1 ');

// What happens at a position; nobody knows where there are only times.
const timed = report.tasks.length === 0;
const task = (at) => report.tasks[at] ?? '';

// The kinds of a training step, in the order of legend and curve; others come after them.
const KINDS = ['weight', 'optimizer state', 'activation', 'gradient', 'update', 'input', 'constant', 'copy', 'scratch'];

function ordered(kinds) {
  const rank = (k) => (KINDS.indexOf(kinds[k]) + KINDS.length + 1) % (KINDS.length + 1);
  return [...kinds.keys()].sort((a, b) => rank(a) - rank(b) || a - b);
}

// An arena with columns as typed arrays, for drawing. Times count from its first on.
function decoded(columns) {
  const numbers = (column) => new Float64Array(column);
  const offset = numbers(columns.offset);
  const size = numbers(columns.size);
  const live = numbers(columns.live);
  const liveAt = numbers(columns.live_at);
  let top = 0;
  live.forEach((bytes, i) => { if (bytes > live[top]) top = i; });
  const start = numbers(columns.start);
  const stop = numbers(columns.stop);
  const counted = numbers(columns.counted);
  const kind = new Uint32Array(columns.kind);
  // Live bytes of each kind, at the same positions.
  const byKind = columns.kinds.map(() => new Float64Array(live.length));
  kind.forEach((k, i) => {
    byKind[k][last(liveAt, start[i])] += counted[i];
    byKind[k][last(liveAt, stop[i])] -= counted[i];
  });
  for (const bytes of byKind) for (let i = 1; i < bytes.length; i += 1) bytes[i] += bytes[i - 1];
  return {
    columns,
    count: offset.length,
    bytes: Number(columns.bytes),
    bound: columns.lower_bound === null ? null : Number(columns.lower_bound),
    origin: BigInt(columns.first),
    length: Number(columns.length),
    low: offset,
    high: offset.map((low, i) => low + size[i]),
    size,
    counted,
    start,
    stop,
    kind,
    order: ordered(columns.kinds),
    live,
    liveAt,
    byKind,
    peak: live[top],
    peakAt: liveAt[top],
    hidden: columns.kinds.map(() => false),
  };
}

// The index of the last entry of an ascending array that is not above a value; 0 if all are.
function last(ascending, value) {
  let [low, high] = [0, ascending.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return Math.max(0, low - 1);
}

// Names are whatever a file says: they become text, never markup.
function element(tag, text, className) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

const byId = (id) => document.getElementById(id);
