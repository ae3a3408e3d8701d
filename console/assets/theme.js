// Before anything is drawn: the colours that were chosen here, if any were.
(() => {
  try {
    const theme = localStorage.getItem('freshet-theme')
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme
  } catch { /* a browser that keeps nothing follows the system */ }
})()
