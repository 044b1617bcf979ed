// What part of the arena is in view, where it is on the canvases, and which colours it has.

const MARGIN = { left: 76, right: 14, top: 8, bottom: 36, gap: 14 };
const base = byId('base');
const overlay = byId('overlay');

const view = { x0: 0, x1: 1, y0: 0, y1: 1 };
// Sizes in CSS pixels; `scale` device pixels make one of them.
const layout = { scale: 1, width: 0, height: 0, map: null, curve: null };
let arena = null;

// A time as the file counts it.
const time = (at) => grouped(arena.origin + BigInt(at));
const position = (at) => `${timed ? 'time' : 'position'} ${time(at)}`;

function measure() {
  layout.scale = window.devicePixelRatio || 1;
  layout.width = base.clientWidth;
  layout.height = base.clientHeight;
  for (const canvas of [base, overlay]) {
    canvas.width = Math.round(layout.width * layout.scale);
    canvas.height = Math.round(layout.height * layout.scale);
  }
  const { left, right, top, bottom, gap } = MARGIN;
  const width = Math.max(1, layout.width - left - right);
  const curve = Math.round(Math.min(190, Math.max(90, layout.height * 0.26)));
  const map = Math.max(1, layout.height - top - bottom - gap - curve);
  layout.map = { left, top, width, height: map };
  layout.curve = { left, top: top + map + gap, width, height: curve };
}

const toX = (at) => layout.map.left + ((at - view.x0) / (view.x1 - view.x0)) * layout.map.width;
const toY = (byte) =>
  layout.map.top + layout.map.height * (1 - (byte - view.y0) / (view.y1 - view.y0));
const fromX = (x) => view.x0 + ((x - layout.map.left) / layout.map.width) * (view.x1 - view.x0);
const fromY = (y) =>
  view.y0 + (1 - (y - layout.map.top) / layout.map.height) * (view.y1 - view.y0);

// The position under a point of the canvas.
const positionAt = (x) => Math.min(arena.length - 1, Math.max(0, Math.floor(fromX(x))));

// An interval of a wanted length within bounds.
function fitted(from, length, low, high, least) {
  length = Math.min(high - low, Math.max(least, length));
  from = Math.min(high - length, Math.max(low, from));
  return [from, from + length];
}

// Nearer than this share of the whole, numbers lack digits to tell places apart.
const NEAREST = 2 ** -40;

function look(x0, xLength, y0, yLength) {
  const { length } = arena;
  const top = Math.max(1, arena.bytes);
  [view.x0, view.x1] = fitted(x0, xLength, 0, length, Math.max(Math.min(2, length), length * NEAREST));
  [view.y0, view.y1] = fitted(y0, yLength, 0, top, Math.max(Math.min(64, top), top * NEAREST));
  redraw();
}

const showAll = () => look(0, Infinity, 0, Infinity);

// Zooms so that the given point of the canvas stays where it is.
function zoom(x, y, xFactor, yFactor) {
  const [at, byte] = [fromX(x), fromY(y)];
  const xLength = (view.x1 - view.x0) * xFactor;
  const yLength = (view.y1 - view.y0) * yFactor;
  const across = (x - layout.map.left) / layout.map.width;
  const up = 1 - (y - layout.map.top) / layout.map.height;
  look(at - across * xLength, xLength, byte - up * yLength, yLength);
}

function pan(dx, dy) {
  const xLength = view.x1 - view.x0;
  const yLength = view.y1 - view.y0;
  look(view.x0 - (dx / layout.map.width) * xLength, xLength,
    view.y0 + (dy / layout.map.height) * yLength, yLength);
}

// Moves as little as it takes to bring a tensor well into view.
function bringIntoView(i) {
  const along = (from, to, low, high) => {
    const length = to - from;
    const wanted = Math.max(Math.min(length, (high - low) * 12), high - low);
    const inside = low >= from && high <= to && wanted >= length;
    return inside ? [from, length] : [(low + high) / 2 - wanted / 2, wanted];
  };
  const x = along(view.x0, view.x1, arena.start[i], arena.stop[i]);
  const y = along(view.y0, view.y1, arena.low[i], arena.high[i]);
  look(...x, ...y);
}

// Colours, from the style sheet, as [red, green, blue].
const palette = { page: null, kinds: [] };
// For kinds that a file makes up.
const MORE = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#999933', '#882255', '#44aa99', '#aa7744', '#7777dd', '#888888'];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mixed = (a, b, share) => a.map((c, i) => Math.round(c + (b[i] - c) * share));
const rgbText = (c) => `rgb(${c.join(' ')})`;

function readColours() {
  for (const name of ['page', 'plot', 'line', 'text', 'quiet', 'accent']) {
    palette[name] = rgb(css(`--${name}`));
  }
  let more = 0;
  palette.kinds = arena.columns.kinds.map((kind) => {
    const known = /^[a-z ]+$/.test(kind) ? css(`--kind-${kind.replaceAll(' ', '-')}`) : '';
    return rgb(known || MORE[more++ % MORE.length]);
  });
}
