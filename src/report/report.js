// Draws the pages' pictures from the data that stands in them as JSON: curves, timelines, bars of a sweep.
// Adds a cross hair with values, the table of a timeline's ranks, and tables that sort. All other words and
// numbers of a page are whole without it.
'use strict';
const all = selector => [...document.querySelectorAll(selector)];
const data = box => JSON.parse(box.textContent);
const put = (box, html) => box.insertAdjacentHTML('beforebegin', html);
const lowest = list => list.reduce((m, v) => Math.min(m, v), Infinity);
const highest = list => list.reduce((m, v) => Math.max(m, v), -Infinity);
const clamp = (v, lo, hi) => Math.min(Math.max(v, lo), hi);
const nothing = '<p class="none">nothing was recorded</p>';
const legend = keys => `<ul class="legend">${keys.map(([dot, name, value = '']) =>
    `<li>${dot && `<span class="dot ${dot}"></span>`}${name} <b>${value}</b></li>`).join('')}</ul>`;

function text(v) {
    if (v === null) return 'n/a';
    if (v && Math.abs(v) < 1e-3) return Number(v.toPrecision(4)).toExponential();
    return Math.abs(v) >= 1e4 ? Math.round(v).toLocaleString('en') : String(Number(v.toPrecision(5)));
}

// ---- Axes ----

const scale = (lo, hi, log) => ({
    lo, hi, log,
    at: v => log ? Math.log(v / lo) / Math.log(hi / lo) : (v - lo) / (hi - lo),
    value: u => log ? lo * Math.pow(hi / lo, u) : lo + u * (hi - lo),
});

// About `want` round values; step 0: the distances from one to the next differ.
function ticks({lo, hi, log}, want) {
    const list = [], decades = Math.log10(hi / lo);
    const fine = decades < want / 2, every = Math.ceil(decades / want);
    for (let e = Math.floor(Math.log10(lo)); log && e <= Math.log10(hi); e++)
        if (fine || e % every === 0) list.push(...(fine ? [1, 2, 5] : [1]).map(i => i * 10 ** e));
    const inside = list.filter(v => v >= lo * (1 - 1e-9) && v <= hi * (1 + 1e-9));
    if (inside.length > 1) return {list: inside, step: 0};
    const least = (hi - lo) / want, p = 10 ** Math.floor(Math.log10(least));
    const step = p * [1, 2, 5, 10].find(i => i * p >= least * (1 - 1e-9));
    const first = Math.ceil(lo / step - 1e-9), n = Math.floor(hi / step + 1e-9) - first + 1;
    return {list: Array.from({length: n}, (_, i) => (first + i) * step), step};
}

// A tick of an axis whose largest tick is `most`: all of them get one unit, 0.5M, 1.0M.
function label(v, step, most) {
    const size = step ? Math.max(Math.abs(v), most) : Math.abs(v);
    if (v === 0) return '0';
    if (size < 1e-3) return Number(v.toPrecision(3)).toExponential();
    const units = size < 99999.5 ? [] : [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];
    const [by, unit] = units.find(u => size >= u[0]) || [1, ''], grain = (step || size) / by;
    const digits = grain < 1 ? Math.min(6, Math.ceil(-Math.log10(grain) - 1e-9)) : 0;
    return (v / by).toLocaleString('en', {minimumFractionDigits: digits, maximumFractionDigits: digits,
        useGrouping: size >= 1e4}) + unit;
}

const percent = share => (100 * share).toFixed(3) + '%';
const bar = (css, from, share, y, height, title, more = '') =>
    `<rect class="${css}" x="${percent(from)}" y="${y}" width="${percent(Math.max(share, 2e-4))}"
        height="${height}"${more}><title>${title}</title></rect>`;
const word = (css, at, y, name, more = '') =>
    `<text class="${css}" x="${percent(at)}" y="${y}"${more}>${name}</text>`;

function axis(x, px, top, bottom, name) {
    const {list, step} = ticks(x, Math.max(4, px / 75));
    const whole = v => !['iteration', 'expert'].includes(name) || Number.isInteger(v);
    return list.filter(whole).map(v => [percent(x.at(v)), v]).map(([at, v]) =>
        `<line class="tick" x1="${at}" x2="${at}" y1="${top}" y2="${bottom + 5}"/>` +
        word('t', x.at(v), bottom + 18, label(v, whole(step) ? step : 1, x.hi))).join('') +
        (px > 900 ? word('soft', 0, bottom + 35, name) : word('r soft', 1, bottom + 35, name));
}

// ---- Curves. A series has name, c (class), x, y, and part, its own share, where areas are stacked ----

const plots = [];

function range(list, log) {
    const known = list.filter(v => v !== null && (!log || v > 0));
    return [lowest(known), highest(known)];
}

function scales({series, from, logX, log, zero}) {
    let [lo, hi] = range(series.flatMap(s => s.x).filter(v => !(v < from)), logX);
    let [low, high] = range(series.flatMap(s => s.y.filter((_, i) => !(s.x[i] < lo))), log);
    if (lo === hi) [lo, hi] = logX ? [lo / 2, hi * 2] : [lo - 1, hi + 1];
    else if (!logX && !from && lo > 0 && lo < .1 * hi) lo = 0;
    const pad = high > low ? .05 * (high - low) : Math.max(Math.abs(high) * .05, 1e-12);
    const factor = Math.max(high / low, 2) ** .05;
    if (low > high) return [scale(lo, hi), scale(low, high)];       // nothing was recorded
    if (log) [low, high] = [low / factor, high * factor];
    else [low, high] = zero ? [Math.min(0, low), high > 0 ? high * 1.06 : 1] : [low - pad, high + pad];
    return [scale(lo, hi, logX), scale(low, high, log)];
}

function path(s, x, y, css) {
    let d = '', open = false;
    s.x.forEach((v, i) => {
        const px = 1000 * x.at(v), py = 1000 - 1000 * y.at(s.y[i]), dots = css === 'dots';
        const ok = s.y[i] !== null && isFinite(py) && px >= -1e-6;
        const alone = ok && !open && (s.y[i + 1] ?? null) === null;
        if (ok && s.part && !open) d += `M${alone ? 0 : px.toFixed(1)} 1000V${py.toFixed(1)}`;
        else if (ok) d += `${open ? 'L' : 'M'}${px.toFixed(1)} ${py.toFixed(1)}`;
        if (alone || (ok && dots)) d += s.part ? 'H1000' : 'h0';
        open = ok && !dots;
    });
    return `<path class="${css} ${s.c}" d="${d}${s.part ? 'V1000Z' : ''}"/>`;
}

function plot(o) {
    const [x, y] = scales(o), h = o.height;
    if (!(x.lo < x.hi && y.lo < y.hi)) return nothing;
    const {list, step} = ticks(y, h > 260 ? 6 : 4), most = Math.max(Math.abs(y.lo), Math.abs(y.hi));
    const rules = list.map(v => [h * (1 - y.at(v)), label(v, step, most)]).map(([at, name]) =>
        `<line class="rule" x2="100%" y1="${at}" y2="${at}"/>` + word('r soft', 0, at + 4, name, ' dx="-8"'));
    const marks = o.marks.filter(m => m > x.lo && m < x.hi).map(m =>
        bar('mark', x.at(m), 0, 0, h, `resumed after iteration ${m}`));
    // Areas of a stack are drawn highest first, to hide no lower one.
    const curves = o.series.map(s => path(s, x, y, s.part ? '' : s.faint ? 'line faint' : 'line') +
        (s.x.length <= s.dots ? path(s, x, y, 'dots') : ''));
    if (o.series.some(s => s.part)) curves.reverse();
    plots.push({x, name: o.name, series: o.series.filter(s => s.x.length)});
    return `<div class="plot curve" style="height:${h}px" role="img" aria-label="${o.title} over ${o.name}">
        <svg aria-hidden="true">${rules.join('')}${axis(x, 450, h, h, o.name)}${marks.join('')}
        <svg viewBox="0 0 1000 1000" preserveAspectRatio="none">${curves.join('')}</svg></svg></div>`;
}

function chart(o, inside = plot(o), kind = '') {
    const keys = o.series.map(s => [s.c + (s.part ? '' : s.faint ? ' low faint' : ' low'),
        s.name === o.title ? 'last' : s.name, s.dots ? text(s.y.findLast(v => v !== null) ?? null) : '']);
    return `<section class="card${kind}"><h2>${o.title}</h2>
        <span class="unit">${o.log ? 'logarithmic' : o.unit}</span>${legend(keys)}${inside}</section>`;
}

// The value of a series at x, between its points; before the first one it grows from 0.
function place(s, x) {
    const i = s.x.findIndex(v => v >= x);
    if (i < 0) return s.y.at(-1);
    const [x0, y0] = i ? [s.x[i - 1], s.y[i - 1]] : [0, 0];
    return s.x[i] > x0 ? y0 + (s.y[i] - y0) * (x - x0) / (s.x[i] - x0) : s.y[i];
}

function curves(box) {
    const {marks, unit, note} = data(box), series = all('script.series').map(data);
    const of = name => series.filter(s => s.of === name);
    const base = {name: 'iteration', height: 190, marks};
    const loss = {...base, title: 'Loss', unit: 'nats a token', height: 340, series: of('Loss')};
    const tokens = of('tokens')[0], time = of('time')[0], x = loss.series[0]?.x || [], last = x.at(-1);
    const grows = s => s && s.x.length > 1 && s.y.at(-1) > 0, many = x.length >= 20 && last > 2 * x[0];
    const over = (name, to) => ({...loss, name, marks: [],
        series: loss.series.map(s => ({...s, x: s.x.map(v => place(to, v))}))});
    const views = [['iterations', loss], grows(tokens) && ['tokens', over('tokens', tokens)],
        grows(time) && ['time', over(unit, time)], many && ['log iterations', {...loss, logX: true}],
        many && ['last three quarters', {...loss, from: last / 4}]].filter(v => v).map(([name, o], i) =>
        `<input type="radio" name="v" id="v${i}"${i ? '' : ' checked'}><label for="v${i}">${name}</label>
        <div class="view">${plot(o)}</div>`);
    const said = note && `<p class="note">${note}</p>`;
    put(box, chart(loss, `<div class="views">${views.join('')}</div>${said}`, ' wide'));
    // far: logarithmic where values differ by more than a factor of 30; varies: drawn only if they differ
    for (const [title, unit, when = ''] of [['Learning rate', ''], ['Gradient norm', '', 'far'],
        ['Throughput', 'tokens/s'], ['Global batch', 'samples', 'varies'], ['Loss scale', '', 'far varies'],
        ['Step time', 'ms'], ['Largest load', 'times the mean of a layer\'s experts']]) {
        const s = of(title), [low, high] = range(s.flatMap(s => s.y), true), far = when.includes('far');
        if (s.length && (high > low || !when.includes('varies')))
            put(box, chart({...base, title, unit, series: s, zero: !far, log: far && high > 30 * low}));
    }
}
all('script.curves').forEach(curves);

// ---- Load of experts: a row for each layer, a field for each expert, how many times the mean it has ----

function loads(box) {
    const {layers, load} = data(box), experts = load[0].length, row = layers.length > 40 ? 9 : 18;
    const most = highest(load.flat()), height = row * layers.length, every = row < 18 ? 4 : 1;
    const strength = v => v > 1 ? Math.log(v) / Math.log(Math.max(most, 2)) : 1 - v;
    const fields = load.map((list, k) => list.map((v, e) => bar(`field ${v > 1 ? 'b' : 'a'}`, e / experts,
        1 / experts, k * row, row - 1, `layer ${layers[k]}, expert ${e}: ${text(v)} times the mean`,
        ` fill-opacity="${strength(v).toFixed(3)}"`)).join('') +
        (k % every ? '' : word('r soft', 0, k * row + row / 2 + 4, layers[k], ' dx="-8"'))).join('');
    put(box, legend([['a', 'fewer tokens than the mean'], ['b', 'more tokens; most:', `${text(most)} times`]]) +
        `<div class="plot loads" style="height:${height}px" role="img" aria-label="load by layer and expert">
        <svg>${axis(scale(-.5, experts - .5), 900, height, height, 'expert')}${fields}</svg></div>`);
}
all('script.loads').forEach(loads);

// ---- Timelines. A lane has bars and replay: [kind, microbatch, chunk, name, start, ms], and operations:
// [stream, name, start, ms, bytes, bytes moved] ----

const [LANE, THIN, GAP, REPLAY] = [26, 6, 12, 18];         // px: heights
const kinds = {F: 'F forward', B: 'B backward', D: 'D backward, input', W: 'W backward, weights',
    S: 'S optimizer step', R: 'between them: gradients given to reductions, weights gathered'};
const streams = {tp: 'tensor', cp: 'context', ep: 'experts', pp: 'messages of the pipeline',
    dp: 'reductions, gathers'};

function lanes(box) {
    const d = data(box), bars = d.flatMap(l => l.bars), work = bars.filter(b => 'FBDW'.includes(b[0]));
    const from = lowest(bars.map(b => b[4])), first = lowest(work.map(b => b[4]));
    const replay = d.flatMap(l => l.replay).map(b => first + b[4] + b[5]);
    const length = highest([...bars.map(b => b[4] + b[5]), ...replay]) - from;
    if (!(length > 0)) return put(box, nothing);
    const median = work.map(b => b[5]).sort((a, b) => a - b)[work.length >> 1];
    const px = clamp(15 * length / median || 0, 640, 20000);       // an instruction has room for its number
    const chunks = 1 + highest(bars.map(b => b[2]));
    const used = new Set(bars.map(b => 'GXT'.includes(b[0]) ? 'R' : b[0]));
    const rows = Object.keys(streams).filter(s => d.some(l => l.operations.some(o => o[0] === s)));
    const lane = LANE + rows.length * THIN + GAP, top = d.length * lane + 22;
    const height = replay.length ? top + d.length * (REPLAY + 2) : d.length * lane;
    const said = (start, ms) => `${text(ms)} ms from ${text(start)} ms`;
    const instructions = (list, at, y, h) => list.map(([kind, mb, chunk, name, start, ms]) => {
        const strong = chunks > 1 ? 1 - .6 * chunk / (chunks - 1) : 1, width = ms * px / length;
        const room = 'FBDW'.includes(kind) && width >= 6.5 * String(mb).length + 3, u = (start + at) / length;
        return bar(kind, u, ms / length - (width > 4) / px, y, h, `${name}: ${said(start + at, ms)}`,
            ` fill-opacity="${strong}"`) +
            (room ? word(`tag ${strong > .6 ? kind : 'far'}`, u + ms / length / 2, y + h / 2 + 4, mb) : '');
    }).join('');
    // Operations less than 1/4000 of the drawing apart become one bar.
    const operations = (list, y) => list.reduce((m, [stream, name, start, ms, , bytes]) => {
        const o = m.at(-1), end = start + ms;
        if (!o || start > o.end + length / 4000) m.push({stream, name, start, end, n: 0, bytes});
        else Object.assign(o, {end: Math.max(o.end, end), n: o.n + 1, bytes: o.bytes + bytes});
        return m;
    }, []).map(o => bar(o.stream, (o.start - from) / length, (o.end - o.start) / length, y, THIN - 1,
        `${o.name}${o.n ? ` and ${o.n} more` : ''}: ${(o.bytes / 1e6).toFixed(3)} MB, ${
            said(o.start - from, o.end - o.start)}`)).join('');
    const svg = d.map((l, k) => bar('floor', 0, 1, k * lane, LANE, 'waiting') +
        instructions(l.bars, -from, k * lane, LANE) +
        instructions(l.replay, first - from, top + k * (REPLAY + 2), REPLAY) + rows.map((s, i) =>
        operations(l.operations.filter(o => o[0] === s), k * lane + LANE + 1 + i * THIN)).join('')).join('');
    const names = d.map((l, k) =>
        `<b style="top:${k * lane + LANE / 2}px" title="${l.at}">rank ${l.rank}</b>`);
    if (replay.length) names.push(`<b style="top:${top + REPLAY / 2}px">schedule</b>`);
    const keys = Object.keys(kinds).filter(k => used.has(k)).map(k => [k, kinds[k]]);
    if (chunks > 1) keys.push(['', 'fainter: later chunks of the rank']);
    put(box, legend([...keys, ['floor', 'waiting'], ...rows.map(s => [s + ' low', streams[s]])]) +
        `<div class="timeline"><div class="lane-names">${names.join('')}</div><div class="scroll">
        <div class="plot lanes" style="height:${height}px;min-width:${px}px">
        <svg>${axis(scale(0, length), px, 0, height, 'ms')}${svg}</svg></div></div></div>`);
    ranks(box, d, length, rows, used);
}

// A row for each rank: the time of each kind of instruction, and the bytes of each stream.
function ranks(box, d, length, rows, used) {
    const shown = [...'FBDWS'].filter(k => used.has(k));
    const ms = v => `${v.toFixed(v < 10 ? 2 : v < 100 ? 1 : 0)} ms`;
    const sum = (list, key, i) => list.filter(e => e[0] === key).reduce((n, e) => n + e[i], 0);
    const shares = Object.entries({under: 'reduced under computation', context: 'context under computation',
        expert: 'experts under computation'})
        .filter(([key]) => d.some(l => l[key] !== null)), table = [['Rank', ...shown, 'rest of the step',
        ...rows.map(s => `${s}, MB`), ...shares.map(([, name]) => name)], ...d.map(l => {
        const times = shown.map(k => sum(l.bars, k, 5)), rest = times.reduce((n, t) => n - t, length);
        return [`rank ${l.rank}`, ...[...times, rest].map(ms),
            ...rows.map(s => (sum(l.operations, s, 4) / 1e6).toFixed(2)),
            ...shares.map(([key]) => l[key] === null ? 'n/a' : `${l[key].toFixed(1)} %`)];
    })];
    const [head, ...body] = table.map((cells, k) => `<tr>${cells.map((c, i) =>
        `<${k ? 'td' : 'th'}${i ? ' class="n"' : ''}>${c}</${k ? 'td' : 'th'}>`).join('')}</tr>`);
    box.parentNode.insertAdjacentHTML('beforeend',
        `<table class="figures"><thead>${head}</thead><tbody>${body.join('')}</tbody></table>`);
}
all('script.lanes').forEach(lanes);

// ---- Bars of a sweep: [layout, predicted ms, measured ms or 0]; all groups have one scale ----

const groups = all('script.bars').map(box => [box, data(box)]);
const x = scale(0, 1.25 * highest(groups.flatMap(g => g[1]).flatMap(b => b.slice(1))));
for (const [box, list] of groups) {
    const height = 44 * list.length;
    const bars = list.map(([name, predicted, measured], i) => word('', 0, 44 * i + 14, name) +
        bar('a', 0, x.at(predicted), 44 * i + 19, measured ? 9 : 18, `predicted ${predicted.toFixed(3)} ms`) +
        (measured ? bar('b', 0, x.at(measured), 44 * i + 28, 9, `measured ${measured.toFixed(3)} ms`) : '') +
        word('', x.at(Math.max(predicted, measured)), 44 * i + 32,
            `${(measured || predicted).toFixed(predicted < 10 ? 2 : 1)} ms`, ' dx="6"'));
    put(box, `<div class="plot bars" style="height:${height}px" role="img"
        aria-label="ms a step of the best layouts">
        <svg>${axis(x, 450, 0, height, 'ms a step; shorter is better')}${bars.join('')}</svg></div>`);
}

// ---- Cross hair ----

all('.plot.curve').forEach((box, i) => {
    const hair = document.createElement('div');
    hair.className = 'hair';
    hair.hidden = true;
    box.append(hair);
    Object.assign(plots[i], {box, hair});
});
const tip = document.createElement('div');
tip.className = 'tip';

function nearest(xs, x) {
    let a = 0, b = xs.length - 1;
    while (b - a > 1) {
        const mid = a + b >> 1;
        if (xs[mid] < x) a = mid; else b = mid;
    }
    return Math.abs(xs[a] - x) < Math.abs(xs[b] - x) ? a : b;
}

function leave() {
    tip.remove();
    for (const p of plots) p.hair.hidden = true;
}

function hover(plot, event) {
    const r = plot.box.getBoundingClientRect(), u = (event.clientX - r.left) / r.width;
    if (u < -.02 || u > 1.02 || !plot.series.length) return leave();
    const main = plot.series[0].x, x = main[nearest(main, plot.x.value(clamp(u, 0, 1)))];
    for (const p of plots) {
        const at = p.x.at(x);
        p.hair.hidden = p.name !== plot.name || !(at >= 0 && at <= 1);
        p.hair.style.left = 100 * at + '%';
    }
    tip.innerHTML = `${plot.name} ${text(x)}` + plot.series.map(s => {
        const i = nearest(s.x, x), at = text(s.x[i]) !== text(x) ? ' at ' + text(s.x[i]) : '';
        return `<div><b>${text((s.part || s.y)[i])}</b><span class="dot ${s.c}"></span>${s.name}${at}</div>`;
    }).join('');
    plot.box.append(tip);
    const left = plot.x.at(x) * r.width, width = tip.offsetWidth;
    tip.style.left = (left + width + 20 > r.width ? Math.max(-40, left - width - 12) : left + 12) + 'px';
}

for (const plot of plots) {
    plot.box.addEventListener('pointermove', event => hover(plot, event));
    plot.box.addEventListener('pointerleave', leave);
}

// ---- Tables ----

for (const th of all('.sorts th')) th.addEventListener('click', () => {
    const body = th.closest('table').tBodies[0], at = th.cellIndex, down = th.dataset.down !== '1';
    for (const other of th.parentNode.cells) delete other.dataset.down;
    th.dataset.down = down ? '1' : '0';
    const key = row => {
        const t = row.cells[at].textContent, x = parseFloat(t);
        return isNaN(x) ? t || '\uffff' : x;
    };
    const order = (x, y) => typeof x === typeof y ? (x > y) - (x < y) : typeof x === 'number' ? -1 : 1;
    [...body.rows].sort((a, b) => order(key(a), key(b)) * (down ? 1 : -1)).forEach(row => body.append(row));
});
