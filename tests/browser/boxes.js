// The faults of what a page renders: boxes outside of the window, scrollers that do not show it, broken words.
() => {
  const faults = [], width = document.documentElement.clientWidth;
  const scroller = (element) => {
    for (let at = element; at && at !== document.body; at = at.parentElement) {
      if (at.scrollWidth > at.clientWidth && /auto|scroll/.test(getComputedStyle(at).overflowX)) return at;
    }
    return null;
  };
  const name = (element) => {
    const text = element.textContent.trim().replace(/\s+/g, " ").slice(0, 40);
    return `${element.tagName}.${element.getAttribute("class") ?? ""} "${text}"`;
  };
  const visible = (element) => {
    const style = getComputedStyle(element);
    const unseen = ".skip, .defs, .vh, [hidden], details:not([open]) > :not(summary)";
    return style.visibility === "visible" && !element.closest(unseen);
  };
  const inside = (box) => box.left >= -0.5 && box.right <= width + 0.5;
  for (const element of document.body.querySelectorAll("*")) {
    const box = element.getBoundingClientRect();
    if (!visible(element) || box.width === 0 || box.height === 0) continue;
    const scrolls = scroller(element);
    if (scrolls === element) {
      const style = getComputedStyle(element);
      const named = element.getAttribute("aria-label") || element.getAttribute("aria-labelledby") || element.id;
      if (element.tagName !== "TEXTAREA" && element.tagName !== "INPUT" && element.tagName !== "SELECT") {
        if (element.tabIndex !== 0 || !named) faults.push(`scrolls without a name or without the focus: ${name(element)}`);
        if (style.backgroundImage === "none") faults.push(`scrolls and does not show it: ${name(element)}`);
      }
    }
    if (!inside(box) && (scrolls === null || scrolls === element)) {
      faults.push(`box ${Math.round(box.left)} to ${Math.round(box.right)} of ${width}: ${name(element)}`);
    }
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const element = text.parentElement;
    if (!visible(element) || element.closest("svg, textarea, select, script")) continue;
    for (const match of text.data.matchAll(/[^\s\/\-.,:;=?|\u2013\u203a]+/g)) {
      range.setStart(text, match.index);
      range.setEnd(text, match.index + match[0].length);
      const boxes = [...range.getClientRects()].filter((box) => box.width > 0);
      if (boxes.length === 0) continue;
      if (!boxes.every(inside) && scroller(element) === null) faults.push(`text outside: ${match[0]} in ${name(element)}`);
      const lines = new Set(boxes.map((box) => Math.round(box.top))).size;
      const whole = boxes.reduce((sum, box) => sum + box.width, 0);
      if (lines > 1 && whole < width / 2) faults.push(`broken in ${lines}: ${match[0]} in ${name(element)}`);
    }
  }
  return [...new Set(faults)].slice(0, 20);
}
