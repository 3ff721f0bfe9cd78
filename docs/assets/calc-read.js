// The way through the book: a chosen route, the place where the reader stopped, what was read.
// <book-place> stands under each title, <book-guide> at a chapter's foot.  Loaded in <head>: what is added is there before
// the page is painted.  Without storage everything works until the tab is closed; the route then travels in the address.
(() => {
  "use strict";
  if (customElements.get("book-place")) return; // a theme may run the script again
  const { make, reader, tab } = globalThis.aiInfraState;
  const { chapters, order, routes } = globalThis.aiInfraReading ?? { chapters: {}, order: [], routes: {} };
  const AWAY_MS = 15 * 60e3; // longer than that is an interruption
  const CROWDED = "浏览器不让保存：关掉这一页就忘";
  const guides = new Set();
  const places = new Set();

  // --- route ---
  let route = known(reader.get("route"));
  let kept = true;

  function known(id) {
    return typeof id === "string" && Object.hasOwn(routes, id) ? id : null;
  }

  function follow(id) {
    route = id;
    kept = reader.set("route", id);
  }

  function readAddress() {
    const asked = known(new URLSearchParams(location.search).get("route"));
    if (asked && asked !== route) follow(asked);
  }

  function leave() {
    follow(null);
    const url = new URL(location.href);
    url.searchParams.delete("route");
    history.replaceState(history.state, "", url); // the theme keeps its scroll position in the state
    redraw();
  }

  const carries = () => route && (!kept || location.protocol === "file:"); // each file may have a storage of its own
  const address = (id) => `${chapters[id].page}.html${carries() ? `?route=${route}` : ""}`;
  const link = (id) => make("a", { href: address(id), textContent: chapters[id].title });
  const step = (id, word, rel) =>
    make("a", { href: address(id), rel, className: `guide-${rel}` }, make("small", { textContent: word }), make("span", { textContent: chapters[id].title }), make("small", { textContent: `${chapters[id].minutes} 分钟` }));
  const minutes = (ids) => ids.reduce((sum, id) => sum + chapters[id].minutes, 0);

  function routeLine(here) {
    if (!route) return null;
    const { title, chapters: stations } = routes[route];
    const at = stations.indexOf(here);
    const unread = stations.filter((id) => !read()[id]);
    const [next, rest] = at < 0 ? [unread[0], unread] : [stations[at + 1], stations.slice(at)];
    const where = at < 0 ? `读过 ${stations.length - unread.length} 站，共 ${stations.length} 站` : `第 ${at + 1} 站，共 ${stations.length} 站`;
    return make(
      "p",
      { className: "place-route" },
      make("strong", { textContent: `路线「${title}」` }),
      `${here && at < 0 ? "（这一章不在路线上）" : ""}：${where}；`,
      ...(next ? ["下一站 ", link(next), "；"] : [at < 0 ? "都读过了；" : "这是最后一站；"]),
      `${at < 0 ? "" : "含这一章"}还剩 ${minutes(rest)} 分钟 `,
      make("button", { type: "button", textContent: "离开路线", onclick: leave }),
      kept ? null : make("small", { textContent: ` ${CROWDED}` }),
    );
  }

  // --- what was read ---
  let readHere = {};
  const read = () => reader.get("read") ?? readHere;

  function setRead(id, yes) {
    const all = { ...read() };
    if (yes) all[id] = new Date().toISOString().slice(0, 10);
    else delete all[id];
    readHere = all;
    reader.set("read", all);
    markNavigation();
  }

  function markNavigation() {
    const done = new Set(Object.keys(read()).map((id) => `${chapters[id]?.page}.html`));
    for (const entry of document.querySelectorAll(".md-nav--primary .md-nav__link[href]")) {
      const isRead = done.has(entry.pathname.split("/").pop());
      entry.classList.toggle("is-read", isRead);
      if (isRead) entry.title = "读过";
      else entry.removeAttribute("title");
    }
  }

  // --- the place where the reader stopped ---
  const stopped = reader.get("place");
  const isPlace = stopped !== null && stopped.when !== reader.get("declined") && Object.hasOwn(chapters, stopped.chapter) && [stopped.at, stopped.title].every((text) => typeof text === "string");
  let back = isPlace && (tab.get("here") === null || Date.now() - stopped.when > AWAY_MS); // offered on the first page only
  let home = isPlace; // and on the home page, until it is declined
  let section = null;

  function decline() {
    back = home = false;
    reader.set("declined", stopped.when);
    redraw();
  }

  function offer(here, page) {
    if (!(page === "index" ? home : back)) return null;
    const way = route && routes[route].chapters.includes(stopped.chapter) ? routes[route].chapters : order;
    const before = chapters[way[way.indexOf(stopped.chapter) - 1]];
    const name = `${stopped.chapter === here ? "这一章" : chapters[stopped.chapter].title} § ${stopped.title}`;
    const go = make("a", { href: `${address(stopped.chapter)}#${stopped.at}`, textContent: name });
    const refuse = make("button", { type: "button", textContent: "不用了", onclick: decline });
    const points = before && make("ul", {}, ...before.rescue.map((text) => make("li", { textContent: text })));
    const rescue = before?.rescue.length && make("details", { open: true }, make("summary", { textContent: `⚡ 30 秒接上：上一章「${before.title}」的三点` }), points);
    return make("div", { className: "place-back" }, make("p", {}, "上次读到 ", go, " ", refuse), rescue || null);
  }

  function keepPlace() {
    const [place] = places;
    if (!place?.dataset.chapter || !section?.isConnected) return;
    const words = [...section.childNodes].filter((node) => !node.classList?.contains("headerlink"));
    const title = words.map((node) => node.textContent).join("").trim();
    reader.set("place", { chapter: place.dataset.chapter, at: section.id, title, when: Date.now() });
  }

  // The section at the top third of the screen; the place is taken only once the reader has scrolled.
  let timer = 0;
  function look() {
    timer = 0;
    const passed = [...document.querySelectorAll(".md-content h2[id]")].filter((heading) => heading.getBoundingClientRect().top < innerHeight / 3);
    const now = passed.at(-1) ?? null;
    if (!now || now === section) return;
    section = now;
    keepPlace();
  }
  addEventListener("scroll", () => (timer ||= setTimeout(look, 300)), { passive: true });
  addEventListener("pagehide", keepPlace);
  document.addEventListener("visibilitychange", () => document.hidden && keepPlace());

  // --- elements ---
  class BookPlace extends HTMLElement {
    connectedCallback() {
      readAddress();
      places.add(this);
      section = null;
      this.draw();
      tab.set("here", 1);
      markNavigation();
    }

    disconnectedCallback() {
      places.delete(this);
      back = false; // the next page offers it no more
    }

    draw() {
      const { chapter, page } = this.dataset;
      this.replaceChildren(...[offer(chapter, page), routeLine(chapter)].filter((part) => part !== null));
    }
  }

  class BookGuide extends HTMLElement {
    connectedCallback() {
      guides.add(this);
      if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => this.draw(), { once: true });
      else this.draw();
      this.seen = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this.reached());
      this.seen.observe(this);
    }

    disconnectedCallback() {
      guides.delete(this);
      this.seen.disconnect();
    }

    reached() {
      this.seen.disconnect();
      globalThis.aiInfraCheck?.show();
    }

    // On paper and without scripts the plain order stands.
    draw() {
      const here = this.dataset.chapter;
      const stations = route ? routes[route].chapters : [];
      const at = stations.indexOf(here);
      this.querySelector(".guide.on-route")?.remove();
      this.classList.toggle("has-route", Boolean(route));
      const button = this.querySelector('[data-act="read"]');
      if (button) {
        const isRead = Boolean(read()[here]);
        button.textContent = isRead ? "✓ 读过了，改成没读" : "标为读过";
        button.setAttribute("aria-pressed", String(isRead));
      }
      if (!route) return;
      const next = at < 0 ? stations.find((id) => !read()[id]) : stations[at + 1];
      const way = make("nav", { className: "guide on-route", ariaLabel: `路线「${routes[route].title}」的上一站与下一站` });
      if (at > 0) way.append(step(stations[at - 1], "路线上一站", "prev"));
      const left = stations.filter((id) => id !== here && !read()[id]);
      if (next) way.append(step(next, at < 0 ? "回到路线" : "路线下一站", "next"));
      else if (left.length) way.append(step(left[0], `还有 ${left.length} 站没读`, "next"));
      else way.append(make("p", { className: "guide-next", textContent: `路线「${routes[route].title}」走完了。` }));
      this.append(way);
    }
  }

  const redraw = () => [...places, ...guides].forEach((element) => element.draw());

  document.addEventListener(
    "click",
    ({ target }) => {
      const id = known(target.closest?.("[data-route]")?.dataset.route);
      if (id) follow(id);
      const guide = target.closest?.("book-guide");
      if (guide && target.closest(".guide-next")) setRead(guide.dataset.chapter, true); // who goes on has read this one
      const button = target.closest?.('[data-act="read"]');
      if (!button) return;
      setRead(guide.dataset.chapter, button.getAttribute("aria-pressed") !== "true");
      redraw();
    },
    true,
  );
  addEventListener("storage", ({ key }) => {
    if (key !== null && !/\.(route|read)$/.test(key)) return;
    route = known(reader.get("route")); // another tab of the book
    redraw();
    markNavigation();
  });

  customElements.define("book-place", BookPlace);
  customElements.define("book-guide", BookGuide);
})();
