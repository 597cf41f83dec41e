// The pages are whole without this script: it adds a cross hair with values, and tables that sort.
'use strict';
const plots = [...document.querySelectorAll('.plot[data-x]')].map(box => {
    const [lo, hi, log] = box.dataset.x.split(' ').map(Number);
    const hair = document.createElement('div');
    hair.className = 'hair';
    hair.hidden = true;
    box.append(hair);
    return {
        box, hair, name: box.dataset.name,
        series: JSON.parse(box.querySelector('script').textContent).filter(s => s.x.length),
        at: x => log ? Math.log(x / lo) / Math.log(hi / lo) : (x - lo) / (hi - lo),
        value: u => log ? lo * Math.pow(hi / lo, u) : lo + u * (hi - lo),
    };
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

function text(v) {
    if (v === null) return 'n/a';
    return Math.abs(v) >= 1e4 ? Math.round(v).toLocaleString('en') : String(Number(v.toPrecision(5)));
}

function leave() {
    tip.remove();
    for (const p of plots) p.hair.hidden = true;
}

function hover(plot, event) {
    const r = plot.box.getBoundingClientRect(), u = (event.clientX - r.left) / r.width;
    if (u < -.02 || u > 1.02 || !plot.series.length) return leave();
    const main = plot.series[0].x;
    const x = main[nearest(main, plot.value(Math.min(1, Math.max(0, u))))];
    for (const p of plots) {
        const at = p.at(x);
        p.hair.hidden = p.name !== plot.name || !(at >= 0 && at <= 1);
        p.hair.style.left = 100 * at + '%';
    }
    tip.replaceChildren(plot.name + ' ' + text(x));
    for (const s of plot.series) {
        const [row, value, dot] = ['div', 'b', 'span'].map(tag => document.createElement(tag));
        const i = nearest(s.x, x);
        dot.className = 'dot ' + s.c;
        value.textContent = text(s.y[i]);
        row.append(value, dot, s.n + (text(s.x[i]) !== text(x) ? ' at ' + text(s.x[i]) : ''));
        tip.append(row);
    }
    plot.box.append(tip);
    const left = plot.at(x) * r.width, width = tip.offsetWidth;
    tip.style.left = (left + width + 20 > r.width ? Math.max(-40, left - width - 12) : left + 12) + 'px';
}

for (const plot of plots) {
    plot.box.addEventListener('pointermove', event => hover(plot, event));
    plot.box.addEventListener('pointerleave', leave);
}

for (const th of document.querySelectorAll('.sorts th')) th.addEventListener('click', () => {
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
