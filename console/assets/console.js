// Live updates are inserted as text, never as HTML.
'use strict'
;(() => {
  const SVG = 'http://www.w3.org/2000/svg'
  const root = document.documentElement

  // The theme selector.
  const theme = document.getElementById('theme')
  theme.closest('label').hidden = false
  theme.value = root.dataset.theme || ''
  theme.addEventListener('change', () => {
    if (theme.value) root.dataset.theme = theme.value
    else delete root.dataset.theme
    try {
      if (theme.value) localStorage.setItem('freshet-theme', theme.value)
      else localStorage.removeItem('freshet-theme')
    } catch { /* the theme applies to this page only */ }
    for (const c of charts.values()) c.plot.redraw()
  })

  const set = (element, { text, tone }) => {
    if (element.textContent !== text) element.textContent = text
    if (tone) element.dataset.tone = tone
    else delete element.dataset.tone
  }

  const bar = part => {
    const svg = document.createElementNS(SVG, 'svg')
    for (const [name, value] of Object.entries({ class: 'bar', viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true', focusable: 'false' })) svg.setAttribute(name, value)
    for (const [name, width] of [['rest', 100], ['part', part]]) {
      const rect = document.createElementNS(SVG, 'rect')
      rect.setAttribute('class', name)
      rect.setAttribute('width', width)
      rect.setAttribute('height', 8)
      svg.append(rect)
    }
    return svg
  }

  const cell = (element, item) => {
    const text = document.createElement('span')
    set(text, item)
    element.append(...(item.percent === undefined ? [] : [bar(item.percent)]), text)
    return element
  }

  const fill = (body, rows) => {
    const heads = [...body.closest('table').tHead.rows[0].cells]
    const made = rows.map(row => {
      const tr = document.createElement('tr')
      row.forEach((item, i) => {
        const td = cell(document.createElement(i === 0 ? 'th' : 'td'), item)
        td.dataset.label = heads[i].textContent
        if (i === 0) td.scope = 'row'
        else if (heads[i].className) td.className = heads[i].className
        tr.append(td)
      })
      return tr
    })
    if (!made.length) {
      const tr = document.createElement('tr'), td = document.createElement('td')
      td.className = 'none'
      td.colSpan = heads.length
      td.textContent = body.dataset.empty
      tr.append(td)
      made.push(tr)
    }
    body.replaceChildren(...made)
  }

  const patch = update => {
    for (const element of document.querySelectorAll('[data-item]')) {
      const item = update.items[element.dataset.item]
      if (item) set(element, item)
    }
    for (const svg of document.querySelectorAll('[data-percent]')) svg.lastElementChild.setAttribute('width', update.items[svg.dataset.percent].percent)
    for (const body of document.querySelectorAll('[data-rows]')) {
      const rows = update.rows[body.dataset.rows]
      const text = JSON.stringify(rows)
      if (rows && body.dataset.was !== text) fill(body, rows)
      body.dataset.was = text
    }
    for (const list of document.querySelectorAll('[data-list]')) {
      const rows = update.rows[list.dataset.list]
      rows.forEach(([item], i) => {
        const was = list.children[i], text = JSON.stringify(item)
        if (was?.dataset.was === text) return
        const li = cell(document.createElement('li'), item)
        li.dataset.was = text
        if (was) was.replaceWith(li)
        else list.append(li)
      })
      while (list.children.length > rows.length) list.lastElementChild.remove()
    }
    for (const [source, points] of Object.entries(update.points || {})) plot(source, points)
    const at = document.getElementById('live-at')
    at.textContent = update.at
  }

  // Charts of the last minutes.
  const charts = new Map()
  const minutes = 5 * 60
  const ink = name => () => getComputedStyle(document.querySelector(name)).color
  const plot = (source, points) => {
    const place = document.querySelector(`[data-chart="${CSS.escape(source)}"]`)
    if (!place || !window.uPlot) return
    let chart = charts.get(source)
    if (!chart) {
      const line = (label, color, dash) => ({ label, stroke: ink(color), width: 2, dash, spanGaps: false, points: { show: false } })
      const axis = { stroke: ink('.unit'), font: '12px system-ui, sans-serif', grid: { stroke: ink('.grid'), width: 1 }, ticks: { show: false } }
      const data = [[], [], [], []]
      chart = { data }
      charts.set(source, chart)
      chart.plot = new uPlot({
        width: place.clientWidth, height: 170, legend: { show: false }, cursor: { show: false },
        tzDate: t => uPlot.tzDate(new Date(t * 1000), 'UTC'),
        scales: { x: { range: (_, low, high) => [Math.min(low ?? high, high - 60), high] }, y: { range: (_, low, high) => [0, Math.max(1, high) * 1.08] } },
        axes: [{ ...axis, size: 26, space: 70, values: '{HH}:{mm}:{ss}' }, { ...axis, size: 46, space: 34 }],
        series: [{}, line('HIGH', '.key.high'), line('LOW', '.key.low', [7, 4]), line('allowed', '.key.limit', [2, 4])],
      }, data, place)
      new ResizeObserver(() => chart.plot.setSize({ width: place.clientWidth, height: 170 })).observe(place)
      matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => chart.plot.redraw())
    }
    const { data } = chart
    for (const p of points) {
      if (data[0].length && p.t <= data[0].at(-1)) continue
      if (data[0].length && p.t - data[0].at(-1) > 15) { // there was no viewer
        data[0].push(p.t - 1)
        for (const line of data.slice(1)) line.push(null)
      }
      data[0].push(p.t)
      data[1].push(p.high)
      data[2].push(p.low)
      data[3].push(p.limit)
    }
    while (data[0].length && data[0].at(-1) - data[0][0] > minutes) for (const line of data) line.shift()
    chart.plot.setData(data)
  }

  // A notice about an action is not shown again after a reload.
  const here = new URL(location.href)
  if (here.searchParams.has('notice')) {
    here.searchParams.delete('notice')
    history.replaceState(history.state, '', here)
  }

  // Live updates while the page is visible.
  const path = document.body.dataset.live
  if (!path || !window.EventSource) return
  const state = document.getElementById('live-state')
  const job = document.querySelector('[data-item="job.state"]')?.textContent
  let stream, again, silence
  const say = (text, stale) => {
    if (state.textContent !== text) state.textContent = text
    document.body.toggleAttribute('data-stale', stale)
  }
  const end = () => {
    stream.close()
    clearTimeout(again)
    clearTimeout(silence)
  }
  const begin = () => {
    clearTimeout(again)
    stream = new EventSource(path + (document.querySelector('[data-chart]') ? '?charts=1' : ''))
    stream.onmessage = event => {
      const update = JSON.parse(event.data)
      patch(update)
      if (job !== undefined && update.items['job.state'].text !== job) { // the buttons depend on the state
        end()
        location.reload()
        return
      }
      say('Live,', false)
      clearTimeout(silence)
      silence = setTimeout(() => say('No updates. Last update at', true), 15000)
    }
    stream.onerror = () => {
      clearTimeout(silence)
      const closed = stream.readyState === EventSource.CLOSED
      say(closed ? 'Not live: reload the page if this persists. Last update at' : 'Not live: reconnecting. Last update at', true)
      if (!closed) return // the browser reconnects
      again = setTimeout(begin, 5000 + 5000 * Math.random())
    }
  }
  const come = () => { if (!document.hidden && stream.readyState === EventSource.CLOSED) begin() }
  addEventListener('pagehide', end)
  addEventListener('pageshow', come)
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) {
      end()
      say('Updated at', false)
    } else come()
  })
  begin()
})()
