// What the theme leaves out for those who use a keyboard or a screen reader.

// What scrolls sideways must be reachable from the keyboard: formulas, tables and code that are wider than the page.
function markScrolling() {
  for (const box of document.querySelectorAll(".formula, .table-wrapper, pre")) {
    if (box.scrollWidth > box.clientWidth) {
      box.tabIndex = 0;
    } else {
      box.removeAttribute("tabindex");
    }
  }
}

// Two landmarks of one kind need names, and the parameters of a long signature are no list of definitions.
function name() {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "This page");
  for (const part of document.querySelectorAll("dt.sig dl, dt.sig dl > dd")) {
    part.setAttribute("role", "presentation");
  }
}

addEventListener("load", () => {
  name();
  markScrolling();
});
addEventListener("resize", markScrolling);
