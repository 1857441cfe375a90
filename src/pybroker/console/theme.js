// Before anything is drawn: the colours that somebody has chosen here. What is done when they are switched, app.js does.
const chosenTheme = localStorage.getItem("pybroker.theme");
if (chosenTheme) document.documentElement.dataset.theme = chosenTheme;
