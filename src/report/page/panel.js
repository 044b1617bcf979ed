// Beside the map: what is alive at a moment. Over it: what lies under the pointer.

// What the user points at or holds; -1 is nothing.
const chosen = { hovered: -1, held: -1, moment: 0, matches: null };
// More rows help nobody.
const LISTED = 100;

function swatch(kind) {
  const e = element('span', undefined, 'swatch');
  e.style.background = rgbText(palette.kinds[kind]);
  return e;
}

function showMoment(at) {
  chosen.moment = at;
  const entry = last(arena.liveAt, at);
  const sum = arena.live[entry] ?? 0;
  const isPeak = at === arena.peakAt;
  byId('moment').textContent = (isPeak ? 'Alive at the peak, ' : 'Alive at ') + position(at);
  byId('moment-task').textContent = task(at);
  byId('moment-sum').textContent = `${human(sum)} in all`;
  byId('to-peak').hidden = isPeak;
  const shares = arena.columns.kinds
    .map((name, kind) => ({ name, kind, bytes: arena.byKind[kind][entry] ?? 0 }))
    .filter((share) => share.bytes > 0)
    .sort((a, b) => b.bytes - a.bytes);
  byId('bar').replaceChildren(...shares.map(({ kind, bytes }) => {
    const part = swatch(kind);
    part.className = '';
    part.style.flex = `${bytes / sum} 0 0`;
    return part;
  }));
  byId('shares').replaceChildren(...shares.map(({ name, kind, bytes }) => {
    const row = element('li');
    row.append(swatch(kind), element('span', name), element('span', human(bytes)));
    return row;
  }));
  listAlive(at);
}

function listAlive(at) {
  const alive = [];
  for (let i = 0; i < arena.count; i += 1) {
    if (arena.start[i] <= at && at < arena.stop[i]) alive.push(i);
  }
  alive.sort((a, b) => arena.counted[b] - arena.counted[a] || arena.size[b] - arena.size[a] || a - b);
  const rows = alive.slice(0, LISTED).map((i) => {
    const row = element('li');
    const button = element('button');
    button.type = 'button';
    button.dataset.tensor = i;
    button.append(swatch(arena.kind[i]), element('span', arena.columns.names[i]),
      // What lies in the home of a state takes no bytes of its own.
      element('span', arena.counted[i] > 0 ? human(arena.counted[i]) : 'in place'));
    button.addEventListener('click', () => hold(i));
    button.addEventListener('pointerenter', () => { chosen.hovered = i; redrawOverlay(); });
    button.addEventListener('pointerleave', () => { chosen.hovered = -1; redrawOverlay(); });
    row.append(button);
    return row;
  });
  if (alive.length > LISTED) {
    const bytes = alive.slice(LISTED).reduce((sum, i) => sum + arena.counted[i], 0);
    rows.push(element('li', `${grouped(alive.length - LISTED)} smaller ones, ${human(bytes)}`));
  }
  byId('alive').replaceChildren(...rows);
  markHeld();
}

function markHeld() {
  for (const button of byId('alive').querySelectorAll('button')) {
    button.classList.toggle('held', Number(button.dataset.tensor) === chosen.held);
  }
}

// Holds a tensor (-1: none): it stays outlined and described.
function hold(i) {
  chosen.held = i;
  markHeld();
  if (i >= 0) bringIntoView(i);
  redrawOverlay();
  describeHeld();
}

function describeHeld() {
  if (chosen.held < 0) return hideTip();
  const middle = (from, to, low, high) => (Math.max(from, low) + Math.min(to, high)) / 2;
  const x = toX(middle(view.x0, view.x1, arena.start[chosen.held], arena.stop[chosen.held]));
  const y = toY(middle(view.y0, view.y1, arena.low[chosen.held], arena.high[chosen.held]));
  return showTip(chosen.held, x, y);
}

// First and last position that a tensor is alive at, with what happens there.
function lifetime(i) {
  const { start, stop, length } = arena.columns;
  if (timed) return `[${time(start[i])}, ${time(stop[i])})`;
  const at = (n) => `${time(n)} ${task(n)}`;
  const end = stop[i] - 1;
  if (end === start[i]) return `at ${at(end)}`;
  return `from ${at(start[i])}\nto ${at(end)}\n(${grouped(stop[i] - start[i])} of ${grouped(length)} positions)`;
}

function showTip(i, x, y) {
  const { columns } = arena;
  const tip = byId('tip');
  const head = element('b');
  head.append(swatch(arena.kind[i]), element('span', columns.names[i]));
  const end = BigInt(columns.offset[i]) + BigInt(columns.size[i]);
  const table = element('table');
  for (const [name, text] of [
    ['kind', columns.kinds[columns.kind[i]]],
    ['type', columns.types[columns.ty[i]]],
    ['size', `${human(arena.size[i])} (${grouped(columns.size[i])} bytes)`],
    ['address', `[${grouped(columns.offset[i])}, ${grouped(end)})`],
    ['alive', lifetime(i)],
    ['why', columns.reasons[columns.reason[i]]],
  ]) {
    if (text === '') continue;
    const row = element('tr');
    row.append(element('th', name), element('td'));
    text.split('\n').forEach((line, k) => {
      if (k > 0) row.lastChild.append(element('br'));
      row.lastChild.append(line);
    });
    table.append(row);
  }
  tip.replaceChildren(head, table);
  tip.classList.toggle('held', i === chosen.held);
  tip.hidden = false;
  // Beside the pointer, and inside the stage.
  const room = (at, size, all) => (at + 16 + size <= all ? at + 16 : Math.max(0, at - 16 - size));
  tip.style.left = `${room(x, tip.offsetWidth, layout.width)}px`;
  tip.style.top = `${Math.min(Math.max(0, layout.height - tip.offsetHeight), room(y, tip.offsetHeight, layout.height))}px`;
}

function hideTip() {
  byId('tip').hidden = true;
}

// What is pointed at, held or looked at, over the map.
function drawOverlay(g, pointer) {
  const { map, curve } = layout;
  const bottom = curve.top + curve.height;
  g.clearRect(0, 0, layout.width, layout.height);
  g.save();
  g.beginPath();
  g.rect(map.left, map.top - 1, map.width + 1, bottom - map.top + 2);
  g.clip();
  g.fillStyle = rgbText(palette.accent);
  g.globalAlpha = 0.8;
  // Not across the peak's label.
  const moment = toX(chosen.moment + 0.5) - 0.75;
  g.fillRect(moment, map.top, 1.5, map.height);
  g.fillRect(moment, curve.top + HEADROOM, 1.5, curve.height - HEADROOM);
  g.globalAlpha = 1;
  g.strokeStyle = rgbText(palette.text);
  for (const i of new Set([chosen.held, chosen.hovered])) {
    if (i >= 0) outline(g, i);
  }
  g.restore();
  if (pointer) drawPointer(g, pointer);
}

function outline(g, i) {
  const x = toX(arena.start[i]);
  const y = toY(arena.high[i]);
  const width = Math.max(3, toX(arena.stop[i]) - x);
  const height = Math.max(3, toY(arena.low[i]) - y);
  g.lineWidth = 4;
  g.strokeStyle = rgbText(palette.page);
  g.strokeRect(x, y, width, height);
  g.lineWidth = 2;
  g.strokeStyle = rgbText(i === chosen.held ? palette.accent : palette.text);
  g.strokeRect(x, y, width, height);
}

// A line through map and curve, with position and live bytes at its foot.
function drawPointer(g, pointer) {
  const { map, curve } = layout;
  const bottom = curve.top + curve.height;
  g.fillStyle = rgbText(palette.quiet);
  g.globalAlpha = 0.6;
  g.fillRect(Math.round(pointer.x), map.top, 1, bottom - map.top);
  g.globalAlpha = 1;
  const at = positionAt(pointer.x);
  const bytes = arena.live[last(arena.liveAt, at)] ?? 0;
  g.font = '11px system-ui, "DejaVu Sans", sans-serif';
  const text = clipped(g, `${[time(at), task(at)].join(' ').trim()}: ${human(bytes)} live`, 400);
  const width = g.measureText(text).width + 12;
  const left = Math.min(layout.width - width, Math.max(0, pointer.x - width / 2));
  g.fillStyle = rgbText(palette.text);
  g.fillRect(left, bottom + 2, width, 18);
  g.fillStyle = rgbText(palette.page);
  g.textAlign = 'left';
  g.textBaseline = 'middle';
  g.fillText(text, left + 6, bottom + 11.5);
}
