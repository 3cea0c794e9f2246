// SPDX-License-Identifier: Apache-2.0
// Drawings that know nothing of what they show. SVG is built as text in pixels of the width at
// hand; colours are classes of report.css, so that light and dark are its business alone.
'use strict';

const escaped = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

const compact = (n) => {
  for (const [size, name] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (n >= size) return `${+ (n / size).toPrecision(3)} ${name}`;
  }
  return n >= 100 ? n.toFixed(0) : String(+n.toPrecision(3));
};

const svg = (width, height, label, content) =>
    `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${
        height}" role="img" aria-label="${escaped(label)}">${content}</svg>`;

const text = (x, y, content, style = '') =>
    `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" class="${style}">${escaped(content)}</text>`;

const line = (x1, y1, x2, y2, style) => `<path class="${style}" d="M${x1.toFixed(1)} ${
    y1.toFixed(1)}L${x2.toFixed(1)} ${y2.toFixed(1)}"/>`;

// The class of a value: prefix and how many of the ascending thresholds it has reached.
const grade = (prefix, thresholds, value) => prefix + thresholds.filter((t) => value >= t).length;

// About `wanted` round numbers from low to high.
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const all = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i)
    all.push(+(i * step).toPrecision(12));
  return all;
}

// Every how many of n labels are drawn so that each has `room` of `length` pixels.
const every = (n, length, room) => {
  const least = Math.max(1, (n * room) / length);
  return [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 128, 200, 256, 500, 512].find(
             (s) => s >= least) ||
      Math.ceil(least / 1000) * 1000;
};

const tooltip = document.body.appendChild(document.createElement('div'));
tooltip.id = 'tip';

// at(x, y, target): the lines to show there, none: nothing.
function hover(element, at) {
  element.onpointermove = (event) => {
    const box = element.getBoundingClientRect();
    const lines = at(event.clientX - box.left, event.clientY - box.top, event.target);
    tooltip.hidden = !lines;
    if (!lines) return;
    tooltip.replaceChildren(
        ...lines.map((one) => Object.assign(document.createElement('div'), {textContent: one})));
    const left = Math.min(
        event.clientX + 14, document.documentElement.clientWidth - tooltip.offsetWidth - 6);
    const below = event.clientY + 18;
    const fits = below + tooltip.offsetHeight < document.documentElement.clientHeight;
    tooltip.style.left = `${Math.max(left, 6)}px`;
    tooltip.style.top = `${fits ? below : event.clientY - tooltip.offsetHeight - 12}px`;
  };
  element.onpointerleave = () => {
    tooltip.hidden = true;
  };
}

// One figure for each title, side by side where there is room. Returns their bodies.
function panels(element, titles, least) {
  const across = element.clientWidth >= titles.length * least ? titles.length : 1;
  element.innerHTML = `<div class="panels">${
      titles
          .map((title) => `<figure><figcaption>${escaped(title)}</figcaption><div></div></figure>`)
          .join('')}</div>`;
  element.firstChild.style.gridTemplateColumns = `repeat(${across}, minmax(0, 1fr))`;
  return [...element.querySelectorAll('figure > div')];
}

// Cells of rows x columns, coloured by of(row, column) -> class. Where a column would be less than
// a pixel wide, several share one, and `of` gets the one that pick(row, columns) chooses. map:
// rows, columns, height (about), of, pick, row_label(r), column_label(c), label, chosen (a row),
// boundaries (columns), row_boundaries, tallest (row, in pixels, else 22), tip(r, c), click(r).
function heat_map(element, map) {
  const left = 34, foot = 20, width = element.clientWidth;
  const shared = Math.ceil(map.columns / Math.max(1, Math.floor(width - left)));
  const columns = Math.ceil(map.columns / shared);
  const cell = Math.min((width - left) / columns, 72);
  const row = Math.max(4, Math.min(map.tallest || 22, Math.floor(map.height / map.rows)));
  const at = (r, c) => shared === 1 ?
      c :
      map.pick(
          r,
          Array.from(
              {length: Math.min(shared, map.columns - c * shared)}, (_, i) => c * shared + i));
  const paths = {};
  for (let r = 0; r < map.rows; ++r) {
    for (let c = 0; c < columns;) {
      const style = map.of(r, at(r, c));
      const first = c;
      while (c < columns && map.of(r, at(r, c)) === style) ++c;
      const x = left + first * cell;
      (paths[style] ||= [])
          .push(`M${x.toFixed(2)} ${r * row}h${((c - first) * cell).toFixed(2)}v${row}H${
              x.toFixed(2)}z`);
    }
  }
  const height = map.rows * row, right = left + columns * cell;
  let content = Object.entries(paths)
                    .map(([style, all]) => `<path class="cell ${style}" d="${all.join('')}"/>`)
                    .join('');
  for (const c of map.boundaries || [])
    content += line(left + (c / shared) * cell, 0, left + (c / shared) * cell, height, 'boundary');
  for (const r of map.row_boundaries || [])
    content += line(left, r * row, right, r * row, 'boundary');
  for (let r = 0; r < map.rows; r += every(map.rows, height, 12))
    content += text(left - 5, r * row + row / 2 + 4, map.row_label(r), 'end');
  for (let c = 0; c < map.columns; c += every(map.columns, right - left, 34))
    content +=
        text(left + ((c + shared / 2) / shared) * cell, height + 14, map.column_label(c), 'middle');
  if (map.chosen >= 0)
    content += `<rect class="chosen" x="${left - 1}" y="${map.chosen * row - 1}" width="${
        right - left + 2}" height="${row + 2}"/>`;
  element.innerHTML = svg(width, height + foot, map.label, content);
  const under = (x, y) => {
    const r = Math.floor(y / row), c = Math.floor((x - left) / cell);
    return r >= 0 && r < map.rows && c >= 0 && c < columns ? [r, at(r, c)] : null;
  };
  hover(element, (x, y) => {
    const found = under(x, y);
    return found && map.tip(...found);
  });
  element.onclick = (event) => {
    const box = element.getBoundingClientRect();
    const r = Math.floor((event.clientY - box.top) / row);
    if (map.click && r >= 0 && r < map.rows) map.click(r);
  };
}

// Swatches with the thresholds between them.
function legend(classes, thresholds, unit) {
  const wide = Math.min(34, Math.floor(380 / classes.length));
  const swatches =
      classes
          .map(
              (style, i) =>
                  `<rect class="cell ${style}" x="${i * wide}" y="2" width="${wide}" height="10"/>`)
          .join('');
  const labels = thresholds.map((t, i) => text((i + 1) * wide, 24, t, 'middle')).join('');
  return `<p class="legend">${svg(classes.length * wide + 4, 28, unit, swatches + labels)}<span>${
      escaped(unit)}</span></p>`;
}

// Bars of values. bars: values, most (end of the scale), mean, mean_label, strong (the bar that
// stands out), its strong_label, label, many (written instead of names too many to write), name(i),
// tip(i), click(i).
function bar_chart(element, bars) {
  const left = 46, top = 26, height = 180, foot = 20, width = element.clientWidth,
        n = bars.values.length;
  const slot = Math.min((width - left - 4) / n, 64);
  const bar = slot > 4 ? slot - Math.min(4, slot / 4) : slot;
  const y = (value) => top + height - (height * value) / bars.most;
  const middle = (i) => left + i * slot + bar / 2;
  const rect = (i) =>
      `M${(left + i * slot).toFixed(2)} ${top + height}V${y(bars.values[i]).toFixed(1)}h${
          (i === bars.strong ? Math.max(bar, 2) : bar).toFixed(2)}V${top + height}z`;
  let content = ticks(0, bars.most, 4)
                    .map(
                        (t) => line(left, y(t), left + n * slot, y(t), 'grid') +
                            text(left - 5, y(t) + 4, compact(t), 'end'))
                    .join('');
  content += `<path class="bar" d="${
      bars.values.map((_, i) => (i === bars.strong ? '' : rect(i))).join('')}"/>`;
  content += `<path class="straggler" d="${rect(bars.strong)}"/>`;
  content += line(left, y(bars.mean), left + n * slot, y(bars.mean), 'mean');
  content +=
      text(Math.max(left + n * slot, left + 60), y(bars.mean) - 5, bars.mean_label, 'end halo');
  const at_end = middle(bars.strong) > width - 150;
  content += text(
      at_end ? middle(bars.strong) + bar / 2 : left + bars.strong * slot,
      Math.max(y(bars.values[bars.strong]) - 6, 12), bars.strong_label,
      at_end ? 'strong halo end' : 'strong halo');
  if (bars.many && slot < 14)
    content += text(left, top + height + 14, bars.many);
  else
    for (let i = 0; i < n; i += every(n, n * slot, 26))
      content += text(middle(i), top + height + 14, bars.name(i), 'middle');
  element.innerHTML = svg(width, top + height + foot, bars.label, content);
  const under = (x) => {
    const i = Math.floor((x - left) / slot);
    return i >= 0 && i < n ? i : -1;
  };
  hover(element, (x) => (under(x) >= 0 ? bars.tip(under(x)) : null));
  element.onclick = (event) => {
    const i = under(event.clientX - element.getBoundingClientRect().left);
    if (bars.click && i >= 0) bars.click(i);
  };
}

// The lines and numbers of a vertical axis from low to high; y: where a number is drawn.
const levels = (low, high, y, left, right) =>
    ticks(low, high, 4)
        .map(
            (t) => line(left, y(t), right, y(t), 'grid') +
                text(left - 5, y(t) + 4, t.toFixed(2), 'end'))
        .join('');

// Lines over common points, and under them strips of bars for series that have some.
// chart: n, series [{style, values}], strips [{style, name, values}], marks [{at, trouble}],
// x_label(i), label, height, low, tip(i), unit.
function line_chart(element, chart) {
  const left = 46, right = 10, top = 8, strip = 42, foot = 32, width = element.clientWidth,
        n = chart.n;
  const all = chart.series.flatMap((one) => one.values);
  const high = Math.max(chart.low + 0.1, Math.max(...all) * 1.05 - chart.low * 0.05);
  const x = (i) =>
      (n === 1 ? (left + width - right) / 2 : left + ((width - left - right) * i) / (n - 1));
  const y = (value) =>
      top + chart.height - (chart.height * (value - chart.low)) / (high - chart.low);
  let content = levels(chart.low, high, y, left, width - right);
  for (const mark of chart.marks)
    content += line(
        x(mark.at), top, x(mark.at), top + chart.height, mark.trouble ? 'mark trouble' : 'mark');
  for (const one of [...chart.series].reverse()) {  // the first on top
    content += `<path class="line ${one.style}" d="M${
        one.values.map((value, i) => `${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join('L')}"/>`;
    if (n <= 40)
      content += one.values
                     .map(
                         (value, i) => `<circle class="point ${one.style}" cx="${
                             x(i).toFixed(1)}" cy="${y(value).toFixed(1)}" r="2.5"/>`)
                     .join('');
  }
  const most = Math.max(1, ...(chart.strips || []).flatMap((one) => one.values));
  const bar = Math.max(1.5, Math.min(12, ((width - left - right) / n) * 0.6));
  let base = top + chart.height;
  for (const one of chart.strips || []) {
    base += strip;
    content += line(left, base, width - right, base, 'grid');
    content +=
        one.values
            .map(
                (value, i) => value < 0 ?
                    '' :
                    `<rect class="fill ${one.style}" x="${(x(i) - bar / 2).toFixed(1)}" y="${
                        (base - Math.max(1.5, (24 * value) / most)).toFixed(1)}" width="${
                        bar.toFixed(
                            1)}" height="${Math.max(1.5, (24 * value) / most).toFixed(1)}"/>`)
            .join('');
    content += text(left, base - 27, one.name, 'small');
  }
  for (let i = 0; i < n; i += every(n, width - left - right, 48))
    content += text(x(i), base + 14, chart.x_label(i), 'middle');
  content += text(width - right, base + 27, chart.unit, 'end small');
  element.innerHTML = svg(width, base + foot, chart.label, `${content}<path class="cursor" d=""/>`);
  const cursor = element.querySelector('.cursor');
  hover(element, (px) => {
    const i = n === 1 ? 0 : Math.round(((px - left) / (width - left - right)) * (n - 1));
    if (i < 0 || i >= n) return null;
    cursor.setAttribute('d', `M${x(i)} ${top}V${base}`);
    return chart.tip(i);
  });
}

// One line through points [x, y] by ascending x, and a marked point. chart: points, marked, low (of
// y), height, label, unit (of x), tip(i).
function xy_chart(element, chart) {
  const left = 46, right = 14, top = 8, foot = 34, width = element.clientWidth;
  const most = Math.max(1, chart.marked[0], ...chart.points.map((one) => one[0]));
  const highest = Math.max(chart.marked[1], ...chart.points.map((one) => one[1]));
  const high = Math.max(chart.low + 0.05, highest * 1.05 - chart.low * 0.05);
  const x = (value) => left + ((width - left - right) * value) / most;
  const y = (value) =>
      top + chart.height - (chart.height * (value - chart.low)) / (high - chart.low);
  let content = levels(chart.low, high, y, left, width - right);
  content += ticks(0, most, Math.max(2, width / 110))
                 .map((t) => text(x(t), top + chart.height + 14, t, 'middle'))
                 .join('');
  content += `<path class="line s1" d="M${
      chart.points.map(([a, b]) => `${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join('L')}"/>`;
  if (chart.points.length <= 60)
    content += chart.points
                   .map(
                       ([a, b]) => `<circle class="point s1" cx="${x(a).toFixed(1)}" cy="${
                           y(b).toFixed(1)}" r="2.5"/>`)
                   .join('');
  content += `<circle class="solid" cx="${x(chart.marked[0]).toFixed(1)}" cy="${
      y(chart.marked[1]).toFixed(1)}" r="5"/>`;
  content += text(width - right, top + chart.height + 29, chart.unit, 'end small');
  element.innerHTML =
      svg(width, top + chart.height + foot, chart.label, `${content}<path class="cursor" d=""/>`);
  const cursor = element.querySelector('.cursor');
  hover(element, (px) => {
    let near = 0;
    chart.points.forEach(([a], i) => {
      if (Math.abs(x(a) - px) < Math.abs(x(chart.points[near][0]) - px)) near = i;
    });
    cursor.setAttribute('d', `M${x(chart.points[near][0])} ${top}V${top + chart.height}`);
    return chart.tip(near);
  });
}
