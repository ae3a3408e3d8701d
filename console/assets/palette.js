// The palette opens with the key "/", and finds pages, entities, dead letters, processes, and the process of
// a partition ("partition 7").
'use strict'
;(() => {
  const dialog = document.getElementById('palette')
  if (!dialog) return
  const input = document.getElementById('palette-text'), list = document.getElementById('palette-list')
  const opener = document.getElementById('palette-open')
  const words = name => dialog.dataset[name].split(' ').filter(Boolean)
  const pages = [...document.querySelectorAll('.top nav a')].map(a => ({ text: a.textContent, href: a.pathname }))
  let processes = [], clients = [], chosen = 0

  const query = values => new URLSearchParams(values).toString()
  const results = text => {
    const small = text.toLowerCase()
    const all = pages.filter(page => page.text.toLowerCase().includes(small))
    if (!text) return all
    if (/^\d+:\d+$/.test(text)) {
      for (const source of words('sources')) all.push({ text: `Dead letter ${text} of ${source}`, href: `/console/dlq/${encodeURIComponent(source)}/${text.replace(':', '/')}` })
    }
    for (const { name } of processes) if (name.toLowerCase().includes(small)) all.push({ text: `Process ${name}`, href: '/console/processes' })
    const partition = /^partition (\d+)$/.exec(small)
    if (partition) {
      for (const { name, partitions = {} } of processes) {
        for (const topic in partitions) if (partitions[topic].includes(+partition[1])) all.push({ text: `Partition ${partition[1]} of ${topic}: process ${name}`, href: '/console/processes' })
      }
    }
    for (const client of new Set(/^(key|jwt):./.test(text) ? [text, ...clients] : clients)) if (client.toLowerCase().includes(small)) all.push({ text: `Client ${client}`, href: '/console/clients/account?' + query({ client }) })
    for (const facet of words('facets')) {
      // "source/facet/key" names the facet too.
      if (text.startsWith(facet + '/') && text.length > facet.length + 1) all.unshift({ text: `Look up ${text}`, href: '/console/lookup?' + query({ facet, key: text.slice(facet.length + 1) }) })
      else all.push({ text: `Look up ${text} in ${facet}`, href: '/console/lookup?' + query({ facet, key: text }) })
    }
    for (const facet of words('facets')) all.push({ text: `Items of ${facet} that begin with ${text}`, href: '/console/items?' + query({ facet, prefix: text }) })
    for (const facet of words('facets')) all.push({ text: `Failing items of ${facet} that begin with ${text}`, href: '/console/items?' + query({ facet, prefix: text, show: 'failing' }) })
    return all
  }
  const show = () => {
    const found = results(input.value.trim()).slice(0, 12)
    chosen = Math.max(0, Math.min(chosen, found.length - 1))
    list.replaceChildren(...found.map((result, i) => {
      const li = document.createElement('li'), a = document.createElement('a')
      li.setAttribute('role', 'none')
      a.setAttribute('role', 'option') // the link itself, because an option may not contain a control
      a.setAttribute('aria-selected', i === chosen)
      a.id = `palette-${i}`
      a.href = result.href
      a.textContent = result.text
      a.tabIndex = -1
      li.append(a)
      return li
    }))
    if (found.length) input.setAttribute('aria-activedescendant', `palette-${chosen}`)
    else input.removeAttribute('aria-activedescendant')
    list.children[chosen]?.scrollIntoView({ block: 'nearest' })
  }
  const open = () => {
    input.value = ''
    chosen = 0
    show()
    dialog.showModal()
    input.focus()
    const load = (page, keep) => fetch(`/console/${page}`, { headers: { Accept: 'application/json' } })
      .then(answer => answer.json())
      .then(found => {
        keep(found)
        show()
      })
      .catch(() => {}) // without this page, the palette finds everything else
    load('processes', found => { processes = found.processes })
    load('clients', found => { clients = found.clients.map(one => one.client) })
  }
  opener.hidden = false
  opener.addEventListener('click', open)
  addEventListener('keydown', event => {
    if (event.key !== '/' || event.ctrlKey || event.altKey || event.metaKey || dialog.open || event.target.closest('input, textarea, select')) return
    event.preventDefault()
    open()
  })
  input.addEventListener('input', () => {
    chosen = 0
    show()
  })
  input.addEventListener('keydown', event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (step) {
      event.preventDefault()
      chosen += step
      show()
    } else if (event.key === 'Enter') {
      event.preventDefault()
      list.children[chosen]?.firstElementChild.click()
    }
  })
  dialog.addEventListener('click', event => { if (event.target === dialog) dialog.close() })
})()
