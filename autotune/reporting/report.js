"use strict";
const PREFIXES = { n: 1e-9, "µ": 1e-6, m: 1e-3, K: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15 };

// Of "1.5 ms", "2m05s", "0.98×", "3, 4"; undefined where a cell has no number.
function numberOf(text) {
  const span = text.match(/^(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?$/);
  if (text && span) return 3600 * (span[1] ?? 0) + 60 * (span[2] ?? 0) + 1 * (span[3] ?? 0);
  const found = text.match(/^×?([\d.]+)(?: ([nµmKMGTP])(?=\w))?/);
  return found ? found[1] * (PREFIXES[found[2]] ?? 1) : undefined;
}

function compared(a, b) {
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

function sort(head, n) {
  const direction = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
  const key = head.className === "number" ? numberOf : (text) => text;
  const body = head.closest("table").tBodies[0];
  const rows = [...body.rows].map((row) => [key(row.cells[n].textContent), row]);
  rows.sort(([a], [b]) =>
    a === undefined || b === undefined ? (a === undefined) - (b === undefined) : direction * compared(a, b));
  body.append(...rows.map(([, row]) => row));
}

for (const head of document.querySelectorAll(".autotune-report thead th")) {
  const button = document.createElement("button");
  button.append(...head.childNodes);
  head.append(button);
  button.addEventListener("click", () => sort(head, head.cellIndex));
}

// What a link leads to may be folded away.
function unfold() {
  const place = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let at = place; at; at = at.parentElement) if (at.localName === "details") at.open = true;
  place?.scrollIntoView?.();
}
addEventListener("hashchange", unfold);
unfold();
