// The switch between versions. Each version is a folder of the site; `versions.js` beside these
// folders names them, and nothing else is asked: the site works from any server, and from a disk.
(() => {
  const root = document.documentElement.dataset.content_root;
  const here = new URL(root, location.href);
  const script = document.createElement("script");
  script.src = new URL("../versions.js", here);
  script.onload = () => {
    const current = decodeURI(here.pathname.split("/").at(-2));
    const versions = window.GRAIN_JAX_VERSIONS ?? [];
    for (const box of document.querySelectorAll(".versions")) {
      const select = box.querySelector("select");
      for (const version of versions) {
        select.add(new Option(version, version, false, version === current));
      }
      select.onchange = () => {
        const page = location.href.slice(here.href.length);
        const there = new URL(`../${select.value}/`, here);
        // The page may not be in every version: then its first one. A disk cannot be asked.
        fetch(new URL(page, there), { method: "HEAD" })
          .then((answer) => location.assign(answer.ok ? new URL(page, there) : there))
          .catch(() => location.assign(new URL("index.html", there)));
      };
      box.hidden = versions.length < 2;
    }
  };
  document.head.append(script);
})();
