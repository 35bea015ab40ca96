"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const settings = { displayModeBar: false, responsive: true, showTips: false };
  const drawn = [];
  document.getElementById("undrawn").remove();
  for (const [key, figure] of Object.entries(figures)) {
    const place = document.getElementById(key);
    if (place) {
      Plotly.newPlot(place, figure.data, figure.layout, settings);
      drawn.push(place);
    }
  }
  // On paper the column is narrower, and what is folded can't be unfolded.
  const PAPER_WIDTH = 660;
  let folded = [];
  window.addEventListener("beforeprint", function () {
    folded = Array.from(document.querySelectorAll("details:not([open])"));
    for (const part of folded) part.open = true;
    for (const place of drawn) Plotly.relayout(place, { width: PAPER_WIDTH });
  });
  window.addEventListener("afterprint", function () {
    for (const part of folded) part.open = false;
    for (const place of drawn) Plotly.relayout(place, { width: null, autosize: true });
  });
})();
