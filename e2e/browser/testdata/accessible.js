// Returns the accessibility faults of the page.
(() => {
  const faults = [], fault = (element, text) => faults.push(`${text}: ${(element.outerHTML || '').slice(0, 110)}`)
  const all = selector => [...document.querySelectorAll(selector)]
  const visible = e => e.checkVisibility({ visibilityProperty: true }) && e.getClientRects().length > 0

  // Contrast of text and background.
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true })
  const rgba = color => {
    canvas.clearRect(0, 0, 1, 1)
    canvas.fillStyle = color
    canvas.fillRect(0, 0, 1, 1)
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
    return [r, g, b, a / 255]
  }
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    return 0.2126 * x + 0.7152 * y + 0.0722 * z
  }
  const ratio = (one, other) => {
    const [a, b] = [light(one), light(other)].sort((x, y) => y - x)
    return (a + 0.05) / (b + 0.05)
  }
  const background = e => {
    for (; e; e = e.parentElement) {
      const color = rgba(getComputedStyle(e).backgroundColor)
      if (color[3] === 1) return color
      if (color[3] > 0) fault(e, 'its background is transparent')
    }
    return rgba('white')
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  const seen = new Set()
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement
    if (!walker.currentNode.data.trim() || seen.has(e) || !visible(e) || e.closest('option, script')) continue
    seen.add(e)
    const style = getComputedStyle(e), size = parseFloat(style.fontSize)
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700)
    const r = ratio(rgba(style.color), background(e))
    if (r < (large ? 3 : 4.5)) fault(e, `contrast ${r.toFixed(2)}`)
    if (size < 11.5) fault(e, `font size of ${size} px`)
  }
  for (const e of all('input:not([type=hidden]), select, button:not(.plain):not(.do)').filter(visible)) {
    const r = ratio(rgba(getComputedStyle(e).borderColor), background(e.parentElement))
    if (r < 3) fault(e, `contrast of its border ${r.toFixed(2)}`)
  }

  // Accessible names of interactive elements.
  const name = e => (e.getAttribute('aria-label') || (e.labels && [...e.labels].map(l => l.textContent).join(' ')) || (e.matches('button, a, summary') ? e.textContent : '') || '').trim()
  const usable = all('a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]').filter(visible)
  for (const e of usable) {
    if (!name(e)) fault(e, 'has no name')
    if (e.matches('[tabindex="0"]') && !e.matches('pre, .scroll, [role="slider"][aria-valuetext]')) fault(e, 'is focusable without a function')
    const box = e.getBoundingClientRect()
    const inText = e.matches('a') && getComputedStyle(e).display === 'inline'
    if (!inText && !e.matches('.skip') && (box.width < 24 || box.height < 24)) fault(e, `is ${box.width.toFixed()} by ${box.height.toFixed()} px`)
  }

  // Structure.
  const levels = all('h1, h2, h3, h4, h5, h6').filter(visible).map(h => +h.tagName[1])
  if (levels.filter(l => l === 1).length !== 1 || levels[0] !== 1) fault(document.body, 'its first heading is not its only h1')
  levels.forEach((l, i) => { if (i && l > levels[i - 1] + 1) fault(document.body, `h${l} follows h${levels[i - 1]}`) })
  for (const landmark of ['header', 'main', 'footer', ...(document.getElementById('token') ? [] : ['nav[aria-label]'])]) if (all(landmark).length !== 1) fault(document.body, `${all(landmark).length} elements ${landmark}, want 1`)
  if (!document.documentElement.lang || !document.title) fault(document.documentElement, 'has no language or title')
  const ids = all('[id]').map(e => e.id)
  ids.forEach((id, i) => { if (ids.indexOf(id) !== i) fault(document.getElementById(id), 'its id is a duplicate') })
  for (const attribute of ['aria-labelledby', 'aria-describedby', 'for'])
    for (const e of all(`[${attribute}]`)) if (!document.getElementById(e.getAttribute(attribute))) fault(e, `${attribute} names no element`)
  for (const table of all('table')) {
    if (!table.caption?.textContent.trim()) fault(table, 'has no caption')
    for (const th of table.querySelectorAll('th')) if (!th.scope) fault(th, 'has no scope')
    for (const th of table.tHead.querySelectorAll('th')) if (!th.textContent.trim()) fault(table, 'has an empty header cell')
  }
  const landmarks = all('main, nav, header, footer, section[aria-labelledby], [role="region"], form[aria-label]').filter(visible)
  const landmark = e => `${e.getAttribute('role') || (e.matches('section') ? 'region' : e.tagName)} ${e.getAttribute('aria-label') || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent || ''}`
  landmarks.forEach((e, i) => { if (landmarks.findIndex(other => landmark(other) === landmark(e)) !== i) fault(e, 'its landmark has the name of another landmark') })
  for (const e of all('.scroll').filter(visible)) if (e.scrollWidth > e.clientWidth) fault(e, `hides ${e.scrollWidth - e.clientWidth} px of its table`)
  for (const caption of all('figcaption')) {
    const colors = [...caption.querySelectorAll('.key:not(.limit, .paused)')].map(key => getComputedStyle(key, '::before').backgroundColor)
    if (new Set(colors).size < colors.length) fault(caption, 'two parts have the same color')
  }
  for (const svg of all('svg')) if (svg.getAttribute('aria-hidden') !== 'true' && !svg.getAttribute('aria-label')) fault(svg, 'has no name')
  for (const e of all('[style]')) if (!e.closest('.uplot')) fault(e, 'has an inline style')
  return [...new Set(faults)]
})()
