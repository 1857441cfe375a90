// Apply the selected colours before the page is drawn. app.js switches them.
const chosenTheme = localStorage.getItem("pybroker.theme");
if (chosenTheme) document.documentElement.dataset.theme = chosenTheme;
