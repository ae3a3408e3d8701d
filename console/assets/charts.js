// Charts of the last hour. The live stream sends the samples; console.js passes them to add.
'use strict'
;(() => {
  if (!window.uPlot) return
  const HOUR = 3600, STEP = 5, MIN_SPAN = 300 // seconds
  const STACKS = {
    calls: ['2xx', '304', '404', '429', '4xx', '5xx', 'timeout', 'other'],
    reads: ['fresh', 'stale', 'none', 'notFound'],
  }
  // Marks are the states of the limiter in which no call is sent.
  const MARKS = {
    stopped: 'stopped', stopping: 'stopped', 'backing-off': 'backoff', 'breaker-open': 'breaker open',
    'quiet-period': 'quiet period', 'restoring-count': 'restoring count',
  }
  const FONT = '12px system-ui, sans-serif'
  // color returns the value of a color variable. light-dark() is resolved only in a real property, so
  // a probe element is added for a moment.
  const color = name => {
    const probe = document.createElement('i')
    probe.style.color = `var(--${name})`
    document.body.append(probe)
    const value = getComputedStyle(probe).color
    probe.remove()
    return value
  }
  const number = value => value === null || value === undefined ? 'unknown' : value.toLocaleString('en', { maximumFractionDigits: value < 10 ? 1 : 0 })
  const duration = seconds => seconds < 60 ? `${Math.round(seconds)} s` : seconds < HOUR ? `${Math.round(seconds / 60)} min` : `${(seconds / HOUR).toFixed(1)} h`
  const clock = at => new Date(at * 1000).toISOString().slice(11, 19)

  const data = new Map() // by source: the lists of its history
  let events = {} // by source: the changes and starts of the last hour
  const plots = []

  const lists = (of, visit, other) => {
    for (const [name, value] of Object.entries(of)) {
      if (Array.isArray(value)) visit(of, name, other?.[name])
      else lists(value, visit, other?.[name])
    }
  }
  const append = (source, more) => {
    const was = data.get(source)
    if (!was || !was.times.length || more.times[0] <= was.times[0]) {
      if (more.times.length || !was) data.set(source, more)
      return
    }
    const skip = more.times.findIndex(t => t > was.times.at(-1))
    if (skip < 0) return
    lists(was, (of, name, newer) => of[name].push(...newer.slice(skip)), more)
    const old = was.times.findIndex(t => t > was.times.at(-1) - HOUR)
    if (old > 0) lists(was, (of, name) => of[name].splice(0, old))
  }

  // stacked returns the lists for uPlot: the totals from the highest layer to the lowest one, so that
  // each layer is drawn over the layers above it.
  const stacked = (layers, names) => {
    const sums = [], lowest = layers[names[0]] || []
    let below = lowest.map(v => v === null ? null : 0)
    for (const name of names) {
      below = below.map((v, i) => v === null ? null : v + layers[name][i])
      sums.unshift(below)
    }
    return sums
  }

  const marks = history => {
    const all = []
    history.states.forEach((state, i) => {
      const text = MARKS[state], last = all.at(-1), at = history.times[i]
      if (!text) return
      if (last && last.text === text && last.to === at - STEP) last.to = at
      else all.push({ text, from: at - STEP, to: at })
    })
    return all
  }

  const drawMarks = (source, plot) => {
    const { ctx, bbox } = plot, ratio = devicePixelRatio
    ctx.save()
    ctx.beginPath()
    ctx.rect(bbox.left, bbox.top - 16 * ratio, bbox.width, bbox.height + 16 * ratio)
    ctx.clip()
    ctx.strokeStyle = ctx.fillStyle = color('bad')
    ctx.font = `${12 * ratio}px system-ui, sans-serif`
    ctx.textBaseline = 'bottom'
    ctx.textAlign = 'left' // uPlot leaves the alignment of the labels of an axis
    ctx.lineWidth = ratio
    let free = 0
    for (const mark of marks(data.get(source))) {
      const from = plot.valToPos(mark.from, 'x', true), to = Math.max(from + 2 * ratio, plot.valToPos(mark.to, 'x', true))
      ctx.save()
      ctx.beginPath()
      ctx.rect(from, bbox.top, to - from, bbox.height)
      ctx.clip()
      ctx.globalAlpha = 0.12
      ctx.fillRect(from, bbox.top, to - from, bbox.height)
      ctx.globalAlpha = 0.45
      ctx.beginPath()
      for (let x = from - bbox.height; x < to; x += 8 * ratio) {
        ctx.moveTo(x, bbox.top + bbox.height)
        ctx.lineTo(x + bbox.height, bbox.top)
      }
      ctx.stroke()
      ctx.restore()
      ctx.fillRect(from, bbox.top - 2 * ratio, to - from, 3 * ratio)
      const width = ctx.measureText(mark.text).width
      const left = Math.min(Math.max(from, bbox.left), bbox.left + bbox.width - width)
      if (left >= free) {
        ctx.fillText(mark.text, left, bbox.top - 3 * ratio)
        free = left + width + 6 * ratio
      }
    }
    ctx.restore()
  }

  // drawEvents draws a line for each change and start of the last hour, with its label at the bottom.
  const drawEvents = (source, plot) => {
    const { ctx, bbox } = plot, ratio = devicePixelRatio, [first, last] = range()
    ctx.save()
    ctx.strokeStyle = ctx.fillStyle = color('ink')
    ctx.font = `${11 * ratio}px system-ui, sans-serif`
    ctx.textBaseline = 'alphabetic'
    ctx.textAlign = 'left'
    ctx.lineWidth = ratio
    ctx.setLineDash([2 * ratio, 3 * ratio])
    let free = 0
    for (const { at, label } of events[source] || []) {
      if (at < first || at > last) continue
      const x = plot.valToPos(at, 'x', true), width = ctx.measureText(label).width
      ctx.beginPath()
      ctx.moveTo(x, bbox.top)
      ctx.lineTo(x, bbox.top + bbox.height)
      ctx.stroke()
      const left = Math.min(x + 3 * ratio, bbox.left + bbox.width - width)
      if (left < free) continue
      ctx.globalAlpha = 0.75
      ctx.fillStyle = color('surface')
      ctx.fillRect(left - ratio, bbox.top + 2 * ratio, width + 2 * ratio, 13 * ratio)
      ctx.globalAlpha = 1
      ctx.fillStyle = color('ink')
      ctx.fillText(label, left, bbox.top + 12 * ratio)
      free = left + width + 6 * ratio
    }
    ctx.restore()
  }

  const axis = side => ({ stroke: () => color('soft'), font: FONT, grid: { stroke: () => color('line'), width: 1 }, ticks: { show: false }, ...side })
  // range returns the period that all charts show: an hour, or less after the start of the process.
  const range = () => {
    const known = [...data.values()].filter(h => h.times.length)
    const last = Math.max(...known.map(h => h.times.at(-1)))
    return [Math.max(last - HOUR, Math.min(last - MIN_SPAN, ...known.map(h => h.times[0]))), last]
  }

  // sentence describes the sample with this index.
  const sentence = (place, i) => {
    const history = data.get(place.dataset.source), kind = place.dataset.chart, layers = history[kind]
    const values = STACKS[kind].map(name => [place.closest('figure').querySelector(`[data-series="${name}"]`).textContent, layers[name][i]])
    let text = `${clock(history.times[i])}: `
    if (values[0][1] === null) text += 'unknown'
    else text += values.filter(([, v], n) => n === 0 || v > 0).map(([name, v]) => `${name} ${number(v)}`).join(', ') + ' a second'
    if (kind === 'calls') {
      text += `; allowed ${number(history.allowedRate[i])}`
      if (MARKS[history.states[i]]) text += `; ${MARKS[history.states[i]]}`
    }
    return text
  }

  // follow shows the values under the cursor. The arrow keys move it: a chart is a slider over time.
  const follow = (place, plot, u) => {
    const line = place.closest('figure').querySelector('.values')
    line.hidden = false
    place.tabIndex = 0
    place.setAttribute('role', 'slider')
    place.setAttribute('aria-valuemin', '0')
    plot.show = () => {
      const history = data.get(place.dataset.source), count = history.times.length
      const i = Math.min(plot.at ?? count - 1, count - 1)
      if (i < 0) return
      const text = sentence(place, i)
      line.textContent = text
      place.setAttribute('aria-valuemax', count - 1)
      place.setAttribute('aria-valuenow', i)
      place.setAttribute('aria-valuetext', text)
    }
    plot.move = i => {
      plot.at = i
      plot.show()
    }
    place.addEventListener('keydown', event => {
      const { times } = data.get(place.dataset.source), last = times.length - 1, now = Math.min(plot.at ?? last, last)
      const to = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - 60, PageUp: now + 60, Home: 0, End: last }[event.key]
      if (to === undefined || last < 0 || event.ctrlKey || event.altKey || event.metaKey) return
      event.preventDefault()
      const i = Math.max(0, Math.min(last, to))
      plot.byKey = true // the mouse moves the cursor too
      u.setCursor({ left: u.valToPos(times[i], 'x'), top: 10 })
      plot.byKey = false
      plot.move(i === last ? undefined : i)
    })
    place.addEventListener('blur', () => {
      u.setCursor({ left: -10, top: -10 })
      plot.move(undefined)
    })
  }

  const layer = name => ({ label: name, stroke: () => color('surface'), fill: () => color(`c-${name}`), width: 1, spanGaps: false, points: { show: false } })

  const chart = place => {
    const kind = place.dataset.chart, { source } = place.dataset, names = STACKS[kind], height = 190
    const plot = { height, place, top: 1 }
    const series = [{}, ...names.toReversed().map(layer)]
    if (kind === 'calls') series.push({ label: 'allowed', stroke: () => color('ink'), width: 1.5, dash: [5, 4], spanGaps: false, points: { show: false } })
    plot.lists = () => {
      const history = data.get(source), sums = stacked(history[kind], names)
      const highest = Math.max(0, ...(sums[0] || []))
      const allowed = history.allowedRate.filter(v => v !== null)
      const limit = Math.max(0, ...allowed)
      // The limit is drawn at the upper edge if the scale that fits it would make the calls too small.
      plot.top = Math.max(1, kind === 'calls' && limit <= 3 * highest ? Math.max(limit, highest) * 1.1 : highest * 1.25)
      if (kind !== 'calls') return [history.times, ...sums]
      const now = allowed.at(-1)
      place.closest('figure').querySelector('.allowed').textContent = now === undefined ? '' : ` (now ${number(now)}${now > plot.top ? ', above the chart' : ''})`
      return [history.times, ...sums, history.allowedRate.map(v => v === null ? null : Math.min(v, plot.top))]
    }
    const u = new uPlot({
      width: place.clientWidth, height, legend: { show: false }, padding: [20, 20, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
      tzDate: t => uPlot.tzDate(new Date(t * 1000), 'UTC'),
      scales: { x: { range }, y: { range: () => [0, plot.top] } },
      axes: [axis({ size: 26, space: 60, incrs: [60, 300, 600, 900, 1800, 3600], values: '{HH}:{mm}' }), axis({ size: 46, space: 34 })],
      series,
      hooks: {
        draw: kind === 'calls' ? [u => { drawMarks(source, u); drawEvents(source, u) }] : [],
        setCursor: [u => { if (plot.move && !plot.byKey) plot.move(u.cursor.left < 0 ? undefined : u.cursor.idx ?? undefined) }],
      },
    }, plot.lists(), place)
    plot.u = u
    follow(place, plot, u)
    return plot
  }

  const spark = place => {
    const { source } = place.dataset, [lane, name] = place.dataset.spark.split('.'), height = 40
    const title = place.parentElement.querySelector('h3'), was = title.textContent
    const plot = { height, place }
    place.setAttribute('role', 'img')
    plot.lists = () => {
      const history = data.get(source), values = history[lane][name]
      plot.top = Math.max(1, ...values.filter(v => v !== null))
      const known = values.some(v => v !== null), highest = Math.max(0, ...values)
      title.textContent = was + (known ? `, at most ${name === 'records' ? number(highest) : duration(highest)}` : ', unknown')
      place.setAttribute('aria-label', title.textContent)
      return [history.times, values]
    }
    plot.u = new uPlot({
      width: place.clientWidth, height, legend: { show: false }, cursor: { show: false }, padding: [2, 0, 2, 0],
      scales: { x: { range }, y: { range: () => [0, plot.top] } },
      axes: [{ show: false }, { show: false }],
      series: [{}, { stroke: () => color(lane), fill: () => color('raised'), width: 1.5, spanGaps: false, points: { show: false } }],
    }, plot.lists(), place)
    return plot
  }

  const start = (place, make) => {
    const plot = make(place)
    place.plot = plot
    plots.push(plot)
    const resize = () => {
      if (plot.u.width !== place.clientWidth) plot.u.setSize({ width: place.clientWidth, height: plot.height })
    }
    // A change of size inside the observer would be reported as an error of the page.
    new ResizeObserver(() => requestAnimationFrame(resize)).observe(place)
  }
  const redraw = () => plots.forEach(plot => plot.u.redraw())
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw)

  const add = (update, marks) => {
    let changed = false
    if (marks && JSON.stringify(marks) !== JSON.stringify(events)) {
      events = marks
      changed = true
    }
    for (const [source, more] of Object.entries(update)) {
      if (more.times.length) {
        append(source, more)
        changed = true
      }
    }
    if (!changed) return
    for (const place of document.querySelectorAll('[data-chart], [data-spark]')) {
      if (!data.has(place.dataset.source)) continue
      if (!place.plot) start(place, place.dataset.chart ? chart : spark)
      else place.plot.u.setData(place.plot.lists())
      place.plot.show?.()
    }
  }
  window.freshetCharts = { add, redraw }
})()
