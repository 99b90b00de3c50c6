// Keeps the words of inline code whole: browsers break a line after any hyphen, and "--" at the end of one line with
// "seeds" on the next is no option. Long words may still break, or a telephone would scroll sideways.
const WHOLE = 24; // characters

document.addEventListener("DOMContentLoaded", () => {
  for (const code of document.querySelectorAll(".md-typeset code")) {
    if (code.closest("pre") || code.children.length > 0) continue;
    const words = code.textContent.split(/(\s+)/).map((word) => {
      if (!word.includes("-") || word.length > WHOLE) return word;
      const whole = document.createElement("span");
      whole.className = "whole";
      whole.textContent = word;
      return whole;
    });
    code.replaceChildren(...words);
  }
});
