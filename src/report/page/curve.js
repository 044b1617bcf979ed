// The live bytes over time, by kind, with the lower bound, the peak and the size of the arena;
// and the axis of time.

const HEADROOM = 34;

// Bytes at the top of the curve's box.
function curveTop() {
  const most = Math.max(1, arena.peak, arena.bytes, arena.bound ?? 0);
  return most / (1 - HEADROOM / layout.curve.height);
}

const curveY = (bytes) => layout.curve.top + layout.curve.height * (1 - bytes / curveTop());

// The entry with the most live bytes among those of the positions from..to.
function highest(from, to) {
  let best = last(arena.liveAt, from);
  for (let i = best + 1; i < arena.live.length && arena.liveAt[i] < to; i += 1) {
    if (arena.live[i] > arena.live[best]) best = i;
  }
  return best;
}

// What each column of pixels shows, as [x, width, entry]; equal neighbours are one.
function curveColumns() {
  const { curve, scale } = layout;
  const columns = [];
  const step = 1 / scale;
  const perPixel = (view.x1 - view.x0) / curve.width;
  for (let x = 0; x < curve.width; x += step) {
    const at = view.x0 + x * perPixel;
    const entry = highest(at, at + step * perPixel);
    const before = columns[columns.length - 1];
    if (before && before[2] === entry) before[1] += step;
    else columns.push([curve.left + x, step, entry]);
  }
  return columns;
}

function drawCurve(g) {
  const { curve } = layout;
  const bottom = curve.top + curve.height;
  g.save();
  g.fillStyle = rgbText(palette.plot);
  g.fillRect(curve.left, curve.top, curve.width, curve.height);
  g.beginPath();
  g.rect(curve.left, curve.top, curve.width, curve.height);
  g.clip();
  const columns = curveColumns();
  const perByte = curve.height / curveTop();
  const tops = columns.map(() => bottom);
  for (const kind of arena.order) {
    g.fillStyle = rgbText(arena.hidden[kind] ? palette.line : palette.kinds[kind]);
    columns.forEach(([x, width, entry], k) => {
      const height = arena.byKind[kind][entry] * perByte;
      tops[k] -= height;
      if (height > 0) g.fillRect(x, tops[k], width, height);
    });
  }
  g.strokeStyle = rgbText(palette.text);
  g.lineWidth = 1;
  g.beginPath();
  for (const [x, width, entry] of columns) {
    const y = bottom - arena.live[entry] * perByte;
    g.lineTo(x, y);
    g.lineTo(x + width, y);
  }
  g.stroke();
  g.restore();
  drawByteAxis(g, { ...curve, top: curve.top + HEADROOM, height: curve.height - HEADROOM },
    0, curveTop() * (1 - HEADROOM / curve.height));
  drawLevels(g);
  drawTimeAxis(g);
}

// Text that stays legible over whatever it is drawn on.
function haloed(g, text, x, y) {
  g.strokeStyle = rgbText(palette.page);
  g.lineWidth = 3;
  g.lineJoin = 'round';
  g.strokeText(text, x, y);
  g.fillText(text, x, y);
}

// The bound is named at the left, the arena at the right, the peak above both.
function drawLevels(g) {
  const { curve } = layout;
  const right = curve.left + curve.width;
  const level = (bytes, dash) => {
    const y = Math.round(curveY(bytes)) + 0.5;
    g.setLineDash(dash);
    g.strokeStyle = rgbText(palette.text);
    g.lineWidth = 1;
    g.beginPath();
    g.moveTo(curve.left, y);
    g.lineTo(right, y);
    g.stroke();
    g.setLineDash([]);
    return y - 8;
  };
  g.font = '11px system-ui, "DejaVu Sans", sans-serif';
  g.textBaseline = 'middle';
  g.fillStyle = rgbText(palette.text);
  if (arena.bound !== null) {
    g.textAlign = 'left';
    haloed(g, `lower bound ${human(arena.bound)}`, curve.left + 6, level(arena.bound, [6, 4]));
  }
  g.textAlign = 'right';
  haloed(g, `arena ${human(arena.bytes)}`, right - 6, level(arena.bytes, []));
  const x = toX(arena.peakAt + 0.5);
  if (x < curve.left || x > right) return;
  const text = `peak ${human(arena.peak)} at ${position(arena.peakAt)}`;
  const half = g.measureText(text).width / 2 + 6;
  g.beginPath();
  g.strokeStyle = rgbText(palette.text);
  g.lineWidth = 1;
  g.moveTo(x, curve.top + 16);
  g.lineTo(x, curveY(arena.peak));
  g.stroke();
  g.beginPath();
  g.arc(x, curveY(arena.peak), 4, 0, 2 * Math.PI);
  g.fill();
  g.textAlign = 'center';
  haloed(g, text, Math.min(right - half, Math.max(curve.left + half, x)), curve.top + 9);
}

// As many letters of a text as fit a width.
function clipped(g, text, width) {
  if (g.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (g.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? `${text.slice(0, low)}…` : '';
}

// Ticks at 1, 2 or 5 times a power of ten; where positions are wide enough, what they do.
function drawTimeAxis(g) {
  const { curve } = layout;
  const length = view.x1 - view.x0;
  const wanted = Math.max(2, Math.floor(curve.width / 90));
  const power = 10 ** Math.max(0, Math.floor(Math.log10(length / wanted)));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => length / n <= wanted) ?? 10 * power;
  const width = (curve.width / length) * step;
  const y = curve.top + curve.height;
  const named = !timed && step === 1 && width > 60;
  g.font = '11px system-ui, "DejaVu Sans", sans-serif';
  g.textBaseline = 'middle';
  g.textAlign = 'center';
  g.fillStyle = rgbText(palette.quiet);
  g.strokeStyle = rgbText(palette.line);
  const phase = Number(((arena.origin % BigInt(step)) + BigInt(step)) % BigInt(step));
  for (let n = Math.ceil((view.x0 + phase) / step) * step - phase; n < view.x1; n += step) {
    const x = Math.round(toX(n)) + 0.5;
    g.beginPath();
    g.moveTo(x, y);
    g.lineTo(x, y + 4);
    g.stroke();
    const middle = timed ? x : toX(n + 0.5);
    if (middle < curve.left || middle > curve.left + curve.width) continue;
    const label = time(n);
    const half = g.measureText(label).width / 2;
    const inside = Math.min(layout.width - half, Math.max(curve.left - 20 + half, middle));
    g.fillText(label, inside, y + 11);
    if (named) g.fillText(clipped(g, task(n), width - 8), middle, y + 26);
  }
  if (named) return;
  g.textAlign = 'right';
  const what = timed ? 'time' : 'position: the command in issue order';
  g.fillText(what, curve.left + curve.width, y + 27);
}
