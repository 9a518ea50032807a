// A hint above each table that is wider than its box.
const hintAll = () => document.querySelectorAll(".scroll").forEach((box) => {
  const above = box.previousElementSibling;
  const hint = above?.matches(".scroll-hint") ? above : above?.querySelector(".scroll-hint");
  hint?.classList.toggle("needed", box.scrollWidth > box.clientWidth + 1);
});
addEventListener("resize", hintAll);
document.querySelectorAll("details").forEach((one) => one.addEventListener("toggle", hintAll));
hintAll();
