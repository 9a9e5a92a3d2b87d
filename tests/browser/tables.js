// The faults of the tables of a page: they scroll sideways, or the words of a cell stand in a narrow column.
() => {
  const faults = [];
  for (const table of document.querySelectorAll(".scroll > table")) {
    const frame = table.parentElement, name = frame.getAttribute("aria-labelledby") ?? frame.getAttribute("aria-label");
    if (frame.scrollWidth > frame.clientWidth) {
      faults.push(`${name} scrolls: ${frame.scrollWidth} of ${frame.clientWidth}`);
    }
    for (const cell of table.tBodies[0].querySelectorAll("td, th")) {
      const range = document.createRange();
      range.selectNodeContents(cell);
      const box = range.getBoundingClientRect();
      if (box.height > 60 && box.width < 96) faults.push(`${name} is narrow: ${cell.textContent.trim().slice(0, 40)}`);
    }
  }
  return faults;
}
