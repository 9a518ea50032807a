// A hint above each table of a chapter that is wider than the page.
const hintAll = () => document.querySelectorAll(".scroll.whole").forEach((box) => {
  const hint = box.previousElementSibling;
  if (hint?.classList.contains("scroll-hint")) hint.classList.toggle("needed", box.scrollWidth > box.clientWidth + 1);
});
addEventListener("resize", hintAll);
document.querySelectorAll("details").forEach((one) => one.addEventListener("toggle", hintAll));
hintAll();
