// What scrolls sideways must be reachable from the keyboard: formulas, tables and code that are wider than the page.
function markScrolling() {
  for (const box of document.querySelectorAll(".formula, .table-wrapper, .highlight pre, pre")) {
    if (box.scrollWidth > box.clientWidth) {
      box.tabIndex = 0;
    } else {
      box.removeAttribute("tabindex");
    }
  }
}
addEventListener("load", markScrolling);
addEventListener("resize", markScrolling);
