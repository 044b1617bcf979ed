// The map: rectangles painted pixel by pixel into an image, beside an image that says which
// rectangle each pixel shows. A hundred thousand of them take milliseconds, and looking up
// what lies under the pointer takes none.

const NONE = 0xffffffff;
const SHADES = [0, 0.08, 0.16, 0.24];
const raster = { width: 0, height: 0, image: null, pixels: null, shown: null };

// One colour for each kind, in shades, so that neighbours differ; and the same faded, for
// what a search does not find.
function shades() {
  const packed = (c) => (255 << 24) | (c[2] << 16) | (c[1] << 8) | c[0];
  const shaded = (colour, fade) => SHADES.map((share) =>
    packed(mixed(mixed(colour, palette.page, share), palette.plot, fade)));
  return {
    plain: palette.kinds.map((colour) => shaded(colour, 0)),
    faded: palette.kinds.map((colour) => shaded(colour, 0.82)),
    empty: packed(palette.plot),
  };
}

const shadeOf = (i) => (Math.imul(i, 2654435761) >>> 16) & 3;

// Mixes a colour into a pixel, in 1/256.
function blend(under, over, share) {
  const rest = 256 - share;
  const even = (((under & 0xff00ff) * rest + (over & 0xff00ff) * share) >>> 8) & 0xff00ff;
  const odd = (((under >>> 8) & 0xff) * rest + ((over >>> 8) & 0xff) * share) & 0xff00;
  return (255 << 24) | even | odd;
}

function rasterize(matches) {
  const { map, scale } = layout;
  const width = Math.max(1, Math.round(map.width * scale));
  const height = Math.max(1, Math.round(map.height * scale));
  if (raster.width !== width || raster.height !== height) {
    raster.width = width;
    raster.height = height;
    raster.image = new ImageData(width, height);
    raster.pixels = new Int32Array(raster.image.data.buffer);
    raster.shown = new Uint32Array(width * height);
  }
  const { pixels, shown } = raster;
  const colours = shades();
  pixels.fill(colours.empty);
  shown.fill(NONE);
  const perTime = width / (view.x1 - view.x0);
  const perByte = height / (view.y1 - view.y0);
  const { start, stop, low, high, kind, hidden, count } = arena;
  for (let i = 0; i < count; i += 1) {
    const left = (start[i] - view.x0) * perTime;
    const right = (stop[i] - view.x0) * perTime;
    const top = height - (high[i] - view.y0) * perByte;
    const bottom = height - (low[i] - view.y0) * perByte;
    if (right <= 0 || left >= width || bottom <= 0 || top >= height || hidden[kind[i]]) continue;
    const set = matches && !matches[i] ? colours.faded : colours.plain;
    paint(i, set[kind[i]][shadeOf(i)], left, right, top, bottom);
  }
}

// Edges are rounded to whole pixels, equal ones equally; a seam of one pixel parts what is
// large enough. Thinner than a pixel, a rectangle colours its pixel by the share it covers.
function paint(i, colour, left, right, top, bottom) {
  const { width, height, pixels, shown } = raster;
  const seam = (from, to) => (to - from > 5 ? 1 : 0);
  let [x0, x1] = [Math.round(left), Math.round(right)];
  let [y0, y1] = [Math.round(top), Math.round(bottom)];
  const thin = right - left < 1 || bottom - top < 1;
  if (thin) {
    if (right - left < 1) [x0, x1] = [Math.floor(left), Math.floor(left) + 1];
    if (bottom - top < 1) [y0, y1] = [Math.floor(top), Math.floor(top) + 1];
  } else {
    x1 -= seam(x0, x1);
    y0 += seam(y0, y1);
  }
  x0 = Math.max(0, x0);
  x1 = Math.min(width, x1);
  y0 = Math.max(0, y0);
  y1 = Math.min(height, y1);
  if (!thin) {
    for (let y = y0; y < y1; y += 1) {
      pixels.fill(colour, y * width + x0, y * width + x1);
      shown.fill(i, y * width + x0, y * width + x1);
    }
    return;
  }
  const covered = Math.min(1, right - left) * Math.min(1, bottom - top);
  const share = Math.round(256 * Math.max(0.12, covered));
  for (let y = y0; y < y1; y += 1) {
    for (let at = y * width + x0; at < y * width + x1; at += 1) {
      pixels[at] = blend(pixels[at], colour, share);
      shown[at] = i;
    }
  }
}

// The rectangle at a point of the canvas, or -1.
function rectangleAt(x, y) {
  const px = Math.floor((x - layout.map.left) * layout.scale);
  const py = Math.floor((y - layout.map.top) * layout.scale);
  if (px < 0 || py < 0 || px >= raster.width || py >= raster.height) return -1;
  const i = raster.shown[py * raster.width + px];
  return i === NONE ? -1 : i;
}

function drawMap(g, matches) {
  const { map, scale } = layout;
  rasterize(matches);
  g.putImageData(raster.image, Math.round(map.left * scale), Math.round(map.top * scale));
  drawNames(g, matches);
  drawByteAxis(g, map, view.y0, view.y1);
}

const LETTER = 6.7;

// Names where they fit, as far as the rectangle can be seen.
function drawNames(g, matches) {
  const { map, scale } = layout;
  g.font = '11px ui-monospace, "DejaVu Sans Mono", monospace';
  g.textBaseline = 'middle';
  g.textAlign = 'left';
  for (let i = 0; i < arena.count; i += 1) {
    if (arena.hidden[arena.kind[i]] || (matches && !matches[i])) continue;
    const top = Math.max(map.top, toY(arena.high[i]));
    const bottom = Math.min(map.top + map.height, toY(arena.low[i]));
    const left = Math.max(map.left, toX(arena.start[i]));
    const right = Math.min(map.left + map.width, toX(arena.stop[i]));
    if (bottom - top < 13 || right - left < 5 * LETTER) continue;
    const y = (top + bottom) / 2;
    // What lies over the rectangle cuts its name.
    const row = Math.floor((y - map.top) * scale) * raster.width - Math.round(map.left * scale);
    let end = left + LETTER;
    while (end < right && raster.shown[row + Math.floor(end * scale)] === i) end += LETTER;
    const letters = Math.floor((Math.min(end, right) - left - 8) / LETTER);
    if (letters < 3) continue;
    const name = arena.columns.names[i];
    const [r, gr, b] = mixed(palette.kinds[arena.kind[i]], palette.page, SHADES[shadeOf(i)]);
    g.fillStyle = 0.3 * r + 0.59 * gr + 0.11 * b > 130 ? '#000' : '#fff';
    g.fillText(name.length > letters ? `${name.slice(0, letters - 1)}…` : name, left + 5, y + 0.5);
  }
}

// Ticks at multiples of a power of two.
function drawByteAxis(g, box, from, to) {
  const wanted = Math.max(2, Math.floor(box.height / 46));
  let step = 1;
  while ((to - from) / step > wanted) step *= 2;
  g.font = '11px system-ui, "DejaVu Sans", sans-serif';
  g.textBaseline = 'middle';
  g.textAlign = 'right';
  g.fillStyle = rgbText(palette.quiet);
  g.strokeStyle = rgbText(palette.line);
  g.lineWidth = 1;
  for (let n = Math.ceil(from / step) * step; n <= to; n += step) {
    const y = Math.round(box.top + box.height * (1 - (n - from) / (to - from))) + 0.5;
    g.beginPath();
    g.moveTo(box.left - 4, y);
    g.lineTo(box.left, y);
    g.stroke();
    g.fillText(short(n), box.left - 8, y);
  }
}
