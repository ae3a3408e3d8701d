// Live updates are inserted as text, never as HTML.
'use strict'
;(() => {
  const SVG = 'http://www.w3.org/2000/svg'
  const root = document.documentElement
  const { module } = document.currentScript.dataset

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
    window.freshetCharts?.redraw()
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

  const link = (href, text) => {
    const a = document.createElement('a')
    if (href.startsWith('/console') || href.startsWith('https://github.com/')) a.href = href
    a.textContent = text
    return a
  }

  const cell = (element, item) => {
    const text = document.createElement('span')
    set(text, item)
    if (item.href) text.replaceChildren(link(item.href, item.text))
    element.append(...(item.percent === undefined ? [] : [bar(item.percent)]), text)
    for (const [href, label] of [[item.act, item.action], [item.runbook, 'Runbook']]) {
      if (!href) continue
      const more = link(href, label)
      more.className = 'more'
      element.append(' ', more)
    }
    return element
  }

  const fill = (body, rows) => {
    const heads = [...body.closest('table').tHead.rows[0].cells]
    const made = rows.map(row => {
      const tr = document.createElement('tr')
      row.forEach((item, i) => {
        const td = cell(document.createElement(i === 0 ? 'th' : 'td'), item)
        td.dataset.label = heads[i].dataset.label
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
    if (update.history) window.freshetCharts?.add(update.history, update.marks)
    for (const button of document.querySelectorAll('[data-scenario]')) {
      if (update.items.scenario) button.setAttribute('aria-pressed', button.dataset.scenario === update.items.scenario.text)
    }
    const at = document.getElementById('live-at')
    at.textContent = update.at
  }

  // patch replaces rows. If one of their links has the focus, the link at the same position gets it.
  const patchKeepingFocus = update => {
    const had = document.activeElement, group = had?.closest('[data-rows], [data-list]')
    const position = group ? [...group.querySelectorAll('a')].indexOf(had) : -1
    patch(update)
    if (group && !had.isConnected) group.querySelectorAll('a')[position]?.focus({ preventScroll: true })
  }

  // A notice about an action is not shown again after a reload.
  const here = new URL(location.href)
  if (here.searchParams.has('notice')) {
    here.searchParams.delete('notice')
    history.replaceState(history.state, '', here)
  }

  // Live updates while the page is visible.
  const path = document.body.dataset.live
  if (!path) return
  const state = document.getElementById('live-state')
  const job = document.querySelector('[data-item="job.state"]')?.textContent
  let stop, again, silence
  const say = (text, stale) => {
    if (state.textContent !== text) state.textContent = text
    document.body.toggleAttribute('data-stale', stale)
  }
  const end = () => {
    stop.abort()
    clearTimeout(again)
    clearTimeout(silence)
  }
  const show = update => {
    patchKeepingFocus(update)
    if (job !== undefined && update.items['job.state'].text !== job) { // the buttons depend on the state
      end()
      location.reload()
      return
    }
    say('Live,', false)
    clearTimeout(silence)
    silence = setTimeout(() => say('No updates. Last update at', true), 15000)
  }
  const follow = async function* (signal) {
    const { Client } = await import(module)
    yield* new Client('/').stream(path + (document.querySelector('[data-chart]') ? '?charts=1' : ''), {
      signal,
      onReconnect: () => {
        clearTimeout(silence)
        say('Not live: reconnecting. Last update at', true)
      },
    })
  }
  const begin = async () => {
    clearTimeout(again)
    stop = new AbortController()
    const { signal } = stop, events = follow(signal)
    for (;;) {
      const next = await events.next().catch(() => ({ done: true }))
      if (signal.aborted) return
      if (next.done) break
      show(JSON.parse(next.value.data))
    }
    end()
    say('Not live: reload the page if this persists. Last update at', true)
    again = setTimeout(begin, 5000 + 5000 * Math.random())
  }
  const come = () => { if (!document.hidden && stop.signal.aborted) begin() }
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
