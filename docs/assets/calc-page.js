// The figures in the prose: a click shows where a number comes from, and opens its calculator with the same inputs.
// All listeners sit on document and window once: pages come and go under instant navigation.
(() => {
  "use strict";
  if (globalThis.aiInfraPage) return; // a theme may run the script again
  globalThis.aiInfraPage = true;
  const BLOCK = "p, li, table, dd, blockquote, figure";
  const { make, reader, readLink } = globalThis.aiInfraState;
  let open = null; // the link whose note is shown
  const left = new Map(); // address → the values that a card had there: [card id, values]

  // --- the note ---
  function close() {
    if (!open) return;
    open.note.remove();
    open.link.removeAttribute("aria-expanded");
    open = null;
  }

  function show(link, byKey) {
    const note = make("aside", { className: "fig-note", role: "note" }, ...link.dataset.why.split("\n").map((line) => make("p", { textContent: line })));
    if (link.getAttribute("href") !== "#") {
      const listed = link.hash.startsWith("#ref-");
      const through = make("a", { href: link.href, textContent: listed ? "在「全部出处」里看" : "用这组输入打开计算器" });
      through.dataset.role = listed ? "open-source" : "open-card";
      note.append(through);
    }
    const block = link.closest(BLOCK) ?? link;
    const frame = block.closest(".md-typeset__scrollwrap") ?? block; // the theme's frame around a wide table
    if (frame.matches("li, dd")) frame.append(note);
    else frame.after(note);
    note.scrollIntoView({ block: "nearest" }); // at the foot of a phone's screen it would open unseen
    link.setAttribute("aria-expanded", "true");
    open = { link, note };
    if (!byKey) return;
    note.tabIndex = -1; // the next Tab is the note's own link
    note.focus({ preventScroll: true });
  }

  // Is the link's card on this page?  Then the values change here; Back returns to the former ones.
  function openHere(through) {
    const url = new URL(through.href);
    const card = document.getElementById(decodeURIComponent(url.hash.slice(1)));
    if (url.pathname !== location.pathname || card?.localName !== "calc-card") return false;
    left.set(location.href, [card.id, card.values()]);
    history.pushState(null, "", url);
    card.take(readLink(url.search));
    return true;
  }

  function take(event) {
    event.preventDefault();
    event.stopImmediatePropagation(); // the theme would fetch the page
  }

  document.addEventListener(
    "click",
    (event) => {
      if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
      const figure = event.target.closest?.("a.fig");
      const through = event.target.closest?.('[data-role="open-card"]');
      if (figure) {
        take(event);
        const again = open?.link === figure;
        close();
        if (!again) show(figure, event.detail === 0);
      } else if (through && openHere(through)) take(event);
      else if (event.target.closest?.('[data-act="figures"]')) remember(event.target.closest(".fig-switch").ariaPressed !== "true");
      else if (event.target.closest?.('[data-act="report"]')) report(event.target);
    },
    true,
  );

  // --- 「报错」: what somebody who mends it must know, as text to paste; nothing is sent ---
  function report(button) {
    const card = button.closest("calc-card");
    const lines = [`页面：${document.title} ${card ? card.address() : location.href.split("?")[0]}`];
    if (card) {
      const outputs = [...card.querySelectorAll(".calc-result > .calc-outputs > [data-output]")];
      lines.push(`计算器：${card.key}（${card.querySelector(".calc-title").textContent}）`);
      lines.push(`输入：${Object.entries(card.values()).map(([name, text]) => `${name}=${text}`).join("，")}`);
      lines.push(`结果：${outputs.map((output) => `${output.dataset.output}=${output.dataset.text}`).join("，")}`);
      const status = card.querySelector('[data-role="status"]').textContent;
      if (status && !status.startsWith("链接已复制")) lines.push(`提示：${status}`);
    }
    lines.push(`版本：${globalThis.aiInfraBook?.version ?? "未知"}，${navigator.userAgent}`, "我看到的：", "我以为应当是：");
    const row = button.closest(".calc-actions, p");
    const area = row.querySelector("textarea.report") ?? make("textarea", { className: "report", rows: 7, ariaLabel: "报错的内容：复制后发给维护者" });
    area.value = lines.join("\n");
    const told = row.querySelector("small") ?? document.createElement("small");
    told.textContent = "已经选中，补上最后两行，发给给你这本书的人：不会自动发送。";
    row.append(area, told);
    area.select();
    navigator.clipboard?.writeText(area.value).catch(() => {}); // it is selected: Ctrl-C does the same
  }

  addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !open) return;
    const { link } = open;
    close();
    if (link.tabIndex >= 0) link.focus();
  });

  addEventListener("popstate", () => {
    close();
    const [id, values] = left.get(location.href) ?? [];
    const link = readLink(location.search);
    const card = document.getElementById(id ?? `calc-${(link.card ?? "").replace("~", "-")}`);
    if (card?.localName !== "calc-card" || card.page !== location.pathname) return;
    if (values) card.put(values);
    else card.take(link);
  });

  // --- 「数字出处」: figures join the tab order only when the reader asks ---
  function remember(on) {
    reader.set("figures", on);
    apply(on);
  }

  function apply(on) {
    for (const figure of document.querySelectorAll("a.fig")) figure.tabIndex = on ? 0 : -1;
    for (const button of document.querySelectorAll(".fig-switch")) {
      button.hidden = false;
      button.setAttribute("aria-pressed", String(on));
      button.closest(".md-content")?.classList.toggle("figures-on", on);
    }
  }

  // On paper the answers stand open.
  const FOLDED = ".answers details:not([open]), .calc-all:has(.calc-lines):not([open])";
  let unfolded = [];
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll(FOLDED)];
    unfolded.forEach((fold) => (fold.open = true));
  });
  addEventListener("afterprint", () => unfolded.forEach((fold) => (fold.open = false)));

  // the theme's search dialog has no name for a screen reader
  document.querySelector(".md-search")?.setAttribute("aria-label", "搜索");

  // each new page brings its own switch, hidden until somebody can work it
  function adopt() {
    if (document.querySelector(".fig-switch[hidden]")) apply(reader.get("figures") === true);
  }
  new MutationObserver(adopt).observe(document.documentElement, { childList: true, subtree: true });
  adopt();
})();
