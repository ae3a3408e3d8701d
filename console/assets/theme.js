// Applies the stored theme before the first paint.
(() => {
  try {
    const theme = localStorage.getItem('freshet-theme')
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme
  } catch { /* without storage the system theme applies */ }
})()
