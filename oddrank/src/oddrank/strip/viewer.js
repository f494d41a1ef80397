// The strip on the page of `labkit look`: what viewer.py has put into the page, drawn on a canvas.
(() => {
const box = document.currentScript.parentElement, find = name => box.querySelector(name)
const data = JSON.parse(find('script').textContent), canvas = find('canvas'), pen = canvas.getContext('2d')
const LEFT = 58, RIGHT = 12, TOP = 10, MARKS = 16, LANE = 34, THIN = 8, GAP = 10
const PITCH = MARKS + LANE + THIN + GAP, HEIGHT = TOP + PITCH * data.ranks.length + 38
let step, items, from, to, wanted = '', chosen = null, drag = null
box.hidden = false

const took = ms => ms >= 1 ? ms.toPrecision(3) + ' ms' : (ms * 1000).toPrecision(3) + ' µs'
const css = name => getComputedStyle(box).getPropertyValue(name).trim()
const width = () => canvas.clientWidth - LEFT - RIGHT
const x = ms => LEFT + (ms - from) / (to - from) * width()
const time = px => from + (px - LEFT) / width() * (to - from)
const top = item => TOP + PITCH * item.rank
const title = item => (item.kind ? item.kind.words + ' · ' : 'graph break ') + item.name
const faint = item => wanted && !item.all.includes(wanted)

function load(number) {
  step = data.steps[number]
  const text = data.texts
  items = step.items.map(([rank, kind, start, length, name, more]) => ({rank, start, end: start + length,
    kind: data.kinds[kind], name: text[name], more: text[more]}))  // a graph break has no kind, and no length
  for (const item of items) item.all = (title(item) + ' ' + item.more).toLowerCase()
  items.sort((a, b) => a.start - b.start)
  find('.said').textContent = step.said
  begin()
  show(0, step.duration)
}

function show(a, b) {  // a window within the step, at least 1 µs long
  const length = Math.min(Math.max(b - a, 0.001), step.duration)
  from = Math.min(Math.max(a, 0), step.duration - length)
  to = from + length
  canvas.ariaLabel = 'what each rank ran between ' + from.toPrecision(6) + ' and ' + to.toPrecision(6) + ' ms'
  draw()
}
const zoom = (factor, at = chosen ? Math.min(Math.max((chosen.start + chosen.end) / 2, from), to) : (from + to) / 2) =>
  show(at - (at - from) * factor, at + (to - at) * factor)
const move = ms => show(from + ms, to + ms)

function shape(item) {  // x, y, width and height on the canvas
  const y = top(item) + MARKS
  if (!item.kind) return [x(item.start) - 1, y - 7, 2, LANE + 7]
  const thin = item.kind.thin, [high, low] = item.kind.shape, h = thin ? THIN - 2 : LANE
  return [x(item.start), (thin ? y + LANE + 2 : y) + high * h, Math.max(x(item.end) - x(item.start), 0.7),
    (low - high) * h]
}

function draw() {
  const scale = devicePixelRatio || 1, ink = css('--ink'), quiet = css('--quiet')
  canvas.width = canvas.clientWidth * scale; canvas.height = HEIGHT * scale; canvas.style.height = HEIGHT + 'px'
  pen.setTransform(scale, 0, 0, scale, 0, 0)
  pen.font = '12px system-ui, sans-serif'; pen.textBaseline = 'middle'
  pen.clearRect(0, 0, canvas.clientWidth, HEIGHT)
  data.ranks.forEach((rank, i) => {
    pen.fillStyle = css('--shade'); pen.fillRect(LEFT, TOP + PITCH * i + MARKS, width(), LANE)
    pen.fillStyle = ink; pen.textAlign = 'right'
    pen.fillText('rank ' + rank, LEFT - 8, TOP + PITCH * i + MARKS + LANE / 2)
  })
  axis(ink, quiet)
  pen.save(); pen.beginPath(); pen.rect(LEFT, 0, width(), HEIGHT); pen.clip()
  const there = items.filter(item => item.end >= from && item.start <= to)
  for (const item of there) if (item.kind) bar(item)
  for (const [rank, start, end] of step.outline) {
    const a = x(start) - 3, b = Math.max(x(end) - x(start), 4) + 6
    pen.strokeStyle = ink; pen.lineWidth = 2
    pen.strokeRect(a, TOP + PITCH * rank + MARKS - 3, b, LANE + 6)
  }
  const free = data.ranks.map(() => -99)
  for (const item of there) if (!item.kind) {
    const [a, y, w, h] = shape(item)
    pen.globalAlpha = faint(item) ? 0.2 : 1
    pen.fillStyle = ink; pen.fillRect(a, y, w, h)
    if (a - free[item.rank] > 18) {
      pen.textAlign = 'center'; pen.fillText(item.name.split(':')[0], a + 1, y - 6); free[item.rank] = a
    }
  }
  pen.globalAlpha = 1
  if (chosen) {
    const [a, y, w, h] = shape(chosen)
    pen.strokeStyle = ink; pen.lineWidth = 2; pen.strokeRect(a - 2, y - 2, w + 4, h + 4)
  }
  pen.restore()
}

function bar(item) {
  let [a, y, w, h] = shape(item)
  if (wanted && !faint(item)) w = Math.max(w, 3)  // what is found can be seen
  pen.globalAlpha = faint(item) ? 0.15 : 1
  pen.fillStyle = item.kind.colour; pen.fillRect(a, y, w, h)
  if (item.kind.hatched && w > 2) {
    pen.strokeStyle = '#fff6'; pen.lineWidth = 1; pen.beginPath()
    for (let k = Math.max(a, LEFT) + 4; k < Math.min(a + w, canvas.clientWidth); k += 6) {
      pen.moveTo(k - 4, y + h); pen.lineTo(Math.min(k + 4, a + w), y)
    }
    pen.stroke()
  }
  const left = Math.max(a, LEFT) + 3, room = Math.min(a + w, canvas.clientWidth - RIGHT) - left - 3
  if (h > 11 && room > 24 && pen.measureText(item.name).width <= room) {
    pen.fillStyle = item.kind.ink; pen.textAlign = 'left'; pen.fillText(item.name, left, y + h / 2)
  }
}

function axis(ink, quiet) {
  const span = to - from, unit = span < 1 ? 1000 : 1, y = HEIGHT - 34, raw = span * unit / Math.max(width() / 90, 2)
  const tens = 10 ** Math.floor(Math.log10(raw)), gap = [1, 2, 5, 10].find(n => n * tens >= raw) * tens
  pen.strokeStyle = pen.fillStyle = quiet; pen.lineWidth = 1; pen.textAlign = 'center'
  pen.beginPath(); pen.moveTo(LEFT, y); pen.lineTo(LEFT + width(), y)
  for (let n = Math.ceil(from * unit / gap); n * gap <= to * unit + 1e-9; n++) {
    const px = x(n * gap / unit)
    pen.moveTo(px, y); pen.lineTo(px, y + 4)
    pen.fillText(+(n * gap).toPrecision(9), px, y + 12)
  }
  pen.stroke()
  pen.fillStyle = ink
  pen.fillText((unit === 1 ? 'ms' : 'µs') + ' since the ' + data.unit + ' began', LEFT + width() / 2, y + 27)
  pen.fillRect(LEFT + width() * from / step.duration, 2, Math.max(width() * span / step.duration, 3), 3)
}

function tell(item) {
  const said = item && [title(item), 'rank ' + data.ranks[item.rank],
    (item.kind ? took(item.end - item.start) + ' from ' : 'at ') + took(item.start), item.more]
  find('.detail').textContent = said ? said.filter(Boolean).join(' · ') : data.hint
}

function under(event) {  // the item at the pointer; a narrow one within 3 pixels
  const spot = canvas.getBoundingClientRect(), px = event.clientX - spot.left, py = event.clientY - spot.top
  let best = null, least = 3
  for (const item of items) {
    const [a, y, w, h] = shape(item), away = Math.max(a - px, px - a - w, 0)
    const [high, tall] = !item.kind ? [y - 9, 16] : item.kind.thin ? [y - 2, h + 4] : [top(item) + MARKS, LANE]
    if (py >= high && py <= high + tall && away < least) { best = item; least = away }
  }
  return best
}

function begin() { chosen = null; tell(null); search() }

function search(turn = 0) {
  wanted = find('.search').value.trim().toLowerCase()
  const matches = items.filter(item => !faint(item))
  find('.found').textContent = wanted ? matches.length + ' of ' + items.length + ' match' : ''
  if (!turn || !matches.length) return
  const at = matches.indexOf(chosen)
  chosen = matches[at < 0 && turn < 0 ? matches.length - 1 : (at + turn + matches.length) % matches.length]
  if (wanted) find('.found').textContent = 'match ' + (matches.indexOf(chosen) + 1) + ' of ' + matches.length
  const span = to - from, middle = (chosen.start + chosen.end) / 2
  if (chosen.start < from || chosen.end > to) show(middle - span / 2, middle + span / 2)
  tell(chosen)
  draw()
}

find('.search').addEventListener('input', () => { begin(); draw() })
find('.search').addEventListener('keydown', event => {
  if (event.key === 'Enter') { event.preventDefault(); search(event.shiftKey ? -1 : 1) }
})
find('select').addEventListener('change', event => load(event.target.selectedIndex))
find('.in').addEventListener('click', () => zoom(0.5))
find('.out').addEventListener('click', () => zoom(2))
find('.whole').addEventListener('click', () => show(0, step.duration))
canvas.addEventListener('wheel', event => {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault(); zoom(Math.exp(event.deltaY / 200), time(event.offsetX))
  } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault(); move((event.deltaX || event.deltaY) / width() * (to - from))
  }
}, {passive: false})
canvas.addEventListener('dblclick', event => zoom(1 / 3, time(event.offsetX)))
canvas.addEventListener('pointerdown', event => {
  drag = {px: event.clientX, from, to, moved: false}; canvas.setPointerCapture(event.pointerId)
})
canvas.addEventListener('pointermove', event => {
  if (!drag) { tell(under(event) || chosen); return }
  const by = (drag.px - event.clientX) / width() * (drag.to - drag.from)
  drag.moved = drag.moved || Math.abs(drag.px - event.clientX) > 3
  if (drag.moved) show(drag.from + by, drag.to + by)
})
canvas.addEventListener('pointerup', event => {
  if (drag && !drag.moved) { chosen = under(event); tell(chosen); draw() }
  drag = null
})
canvas.addEventListener('pointerleave', () => tell(chosen))
canvas.addEventListener('keydown', event => {
  const act = {ArrowLeft: () => move((from - to) / 5), ArrowRight: () => move((to - from) / 5),
    '+': () => zoom(0.5), '=': () => zoom(0.5), '-': () => zoom(2), Home: () => show(0, step.duration),
    Enter: () => search(event.shiftKey ? -1 : 1)}[event.key]
  if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act() }
})
addEventListener('resize', draw)
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw)
load(find('select').selectedIndex)
})()
