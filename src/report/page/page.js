// The page around the map, and what the user does.

const arenas = report.arenas.map(decoded);
const context = base.getContext('2d', { alpha: false });
const above = overlay.getContext('2d');
let pointer = null;

// Draws at most once a frame.
const pending = { base: false, overlay: false };
function schedule(part) {
  if (!pending.base && !pending.overlay) requestAnimationFrame(draw);
  pending[part] = true;
}
const redraw = () => schedule('base');
const redrawOverlay = () => schedule('overlay');

function draw() {
  const whole = pending.base;
  pending.base = pending.overlay = false;
  const { scale } = layout;
  if (whole) {
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.fillStyle = rgbText(palette.page);
    context.fillRect(0, 0, layout.width, layout.height);
    drawMap(context, chosen.matches);
    drawCurve(context);
    if (chosen.held >= 0) describeHeld();
  }
  above.setTransform(scale, 0, 0, scale, 0, 0);
  drawOverlay(above, pointer);
}

function figures() {
  const gap = arena.bytes - arena.peak;
  const percent = (part, whole) => `${((100 * part) / Math.max(1, whole)).toFixed(2)} %`;
  const rows = [
    ['Arena', human(arena.bytes), `${grouped(arena.columns.bytes)} bytes`],
    ['Live peak', human(arena.peak), `at ${position(arena.peakAt)} ${task(arena.peakAt)}`],
  ];
  if (arena.bound !== null) {
    const above = arena.peak - arena.bound;
    const note = above === 0 ? 'the peak is optimal'
      : above > 0 ? `the peak is ${percent(above, arena.bound)} above it`
        : 'without recomputation and swaps';
    rows.push(['Lower bound', human(arena.bound), timed ? 'what is alive at once' : note]);
  }
  rows.push(['Fragmentation', human(gap), gap === 0 ? 'none' : `${percent(gap, arena.peak)} of the peak`]);
  rows.push([timed ? 'Buffers' : 'Tensors', grouped(arena.columns.tensors), timed ? '' : `${grouped(report.tasks.length)} commands`]);
  byId('figures').replaceChildren(...rows.map(([name, figure, note]) => {
    const group = element('div');
    const small = element('small', note);
    small.title = note;
    const value = element('dd', figure);
    value.append(small);
    group.append(element('dt', name), value);
    return group;
  }));
}

function legend() {
  const count = arena.columns.kinds.map(() => 0);
  arena.kind.forEach((k) => { count[k] += 1; });
  byId('legend').replaceChildren(...arena.order.map((kind) => {
    const name = arena.columns.kinds[kind];
    const button = element('button');
    button.type = 'button';
    button.title = 'Show or hide';
    button.dataset.kind = name;
    button.append(swatch(kind), element('span', name), element('small', grouped(count[kind])));
    button.setAttribute('aria-pressed', String(!arena.hidden[kind]));
    button.addEventListener('click', () => {
      arena.hidden[kind] = !arena.hidden[kind];
      button.setAttribute('aria-pressed', String(!arena.hidden[kind]));
      redraw();
    });
    return button;
  }));
}

// Goes to an arena and shows all of it.
function visit(next) {
  arena = next;
  Object.assign(chosen, { hovered: -1, held: -1, matches: null });
  readColours();
  measure();
  figures();
  legend();
  search();
  hideTip();
  showMoment(arena.peakAt);
  for (const button of byId('arenas').children) {
    button.setAttribute('aria-pressed', String(button.textContent === arena.columns.name));
  }
  showAll();
}

// What the search finds; nothing to find is no search.
function search() {
  const wanted = byId('search').value.trim().toLowerCase();
  if (wanted === '') {
    chosen.matches = null;
    byId('found').textContent = '';
  } else {
    arena.lowered ??= arena.columns.names.map((name) => name.toLowerCase());
    chosen.matches = Uint8Array.from(arena.lowered, (name) => Number(name.includes(wanted)));
    const found = chosen.matches.reduce((sum, m) => sum + m, 0);
    byId('found').textContent = `${grouped(found)} found`;
  }
  redraw();
}

// Holds the next tensor (or the one before) that the search finds.
function step(forward) {
  if (!chosen.matches) return;
  for (let k = 1; k <= arena.count; k += 1) {
    const from = chosen.held < 0 && !forward ? 0 : chosen.held;
    const i = (from + (forward ? k : arena.count - k)) % arena.count;
    if (chosen.matches[i] && !arena.hidden[arena.kind[i]]) {
      showMoment(arena.start[i]);
      hold(i);
      return;
    }
  }
}

function point(event) {
  const box = overlay.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

const insideX = ({ x }) => x >= layout.map.left && x <= layout.map.left + layout.map.width;
const onCurve = ({ y }) => y > layout.map.top + layout.map.height;

function hover(at) {
  pointer = at && insideX(at) ? at : null;
  chosen.hovered = at ? rectangleAt(at.x, at.y) : -1;
  if (chosen.hovered >= 0) showTip(chosen.hovered, at.x, at.y);
  else describeHeld();
  redrawOverlay();
}

// A drag that stays within a few pixels is a click.
let drag = null;
overlay.addEventListener('pointerdown', (event) => {
  if (event.button !== 0) return;
  overlay.setPointerCapture(event.pointerId);
  drag = { ...point(event), moved: false };
});
overlay.addEventListener('pointermove', (event) => {
  const at = point(event);
  if (!drag) {
    hover(at);
    return;
  }
  if (!drag.moved && Math.hypot(at.x - drag.x, at.y - drag.y) < 4) return;
  pan(at.x - drag.x, onCurve(drag) ? 0 : at.y - drag.y);
  drag = { x: at.x, y: drag.y + (onCurve(drag) ? 0 : at.y - drag.y), moved: true };
  overlay.classList.add('moving');
  hover(null);
});
overlay.addEventListener('pointerup', (event) => {
  const at = point(event);
  if (drag && !drag.moved && insideX(at)) {
    chosen.held = rectangleAt(at.x, at.y);
    showMoment(positionAt(at.x));
  }
  drag = null;
  overlay.classList.remove('moving');
  hover(at);
});
overlay.addEventListener('pointercancel', () => { drag = null; });
overlay.addEventListener('pointerleave', () => hover(null));
overlay.addEventListener('dblclick', showAll);
overlay.addEventListener('wheel', (event) => {
  event.preventDefault();
  const at = point(event);
  // Lines and pages as pixels; some systems turn the wheel sideways while Shift is down.
  const turned = (event.deltaY || event.deltaX) * [1, 16, 400][event.deltaMode];
  const factor = Math.exp(Math.min(200, Math.max(-200, turned)) * 0.002);
  zoom(at.x, at.y, event.altKey ? 1 : factor, event.shiftKey || onCurve(at) ? 1 : factor);
  hover(null);
}, { passive: false });

const KEYS = {
  ArrowLeft: () => pan(60, 0),
  ArrowRight: () => pan(-60, 0),
  ArrowUp: () => pan(0, 60),
  ArrowDown: () => pan(0, -60),
  '+': () => zoomMiddle(0.7),
  '=': () => zoomMiddle(0.7),
  '-': () => zoomMiddle(1 / 0.7),
  0: showAll,
  Home: showAll,
};
function zoomMiddle(factor) {
  const { map } = layout;
  zoom(map.left + map.width / 2, map.top + map.height / 2, factor, factor);
}
overlay.addEventListener('keydown', (event) => {
  const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape') hold(-1);
});

byId('search').addEventListener('input', () => {
  chosen.held = -1;
  hideTip();
  search();
});
byId('search').addEventListener('keydown', (event) => {
  if (event.key === 'Enter') step(!event.shiftKey);
});
byId('reset').addEventListener('click', showAll);
byId('to-peak').addEventListener('click', () => {
  showMoment(arena.peakAt);
  redrawOverlay();
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  readColours();
  legend();
  showMoment(chosen.moment);
  redraw();
});
new ResizeObserver(() => {
  if (base.clientWidth === layout.width && base.clientHeight === layout.height) return;
  measure();
  redraw();
  draw();
}).observe(byId('stage'));

document.title = report.title;
byId('title').textContent = report.title;
byId('about').textContent = report.about;
if (arenas.length > 1) {
  byId('arenas').append(...arenas.map((one) => {
    const button = element('button', one.columns.name, 'space');
    button.type = 'button';
    button.addEventListener('click', () => visit(one));
    return button;
  }));
}
visit(arenas[0]);
