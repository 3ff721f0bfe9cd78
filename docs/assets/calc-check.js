// Self-test: typed answers are judged by Python (<book-check>), the rest by the reader (buttons under each answer);
// <book-self-test> lists the weak points.  What is kept, by chapter: check.NN = {n: {ok, question, at, section}}, and
// guess.NN = [right, answered], which the foot of the chapter counts from its cards.
(() => {
  "use strict";
  if (customElements.get("book-check")) return; // a theme may run the script again
  const { everything, make, reader, replaceAll, saveFile, openFile } = globalThis.aiInfraState;
  const FULL = "浏览器不让保存：这一页还能用，关掉就忘";
  const chapter = () => document.querySelector("book-guide")?.dataset.chapter;
  const forgotten = {}; // what a browser without storage was told

  // An imported file may hold anything.
  function marks(id) {
    const kept = Object.entries(reader.get(`check.${id}`) ?? forgotten[id] ?? {});
    return Object.fromEntries(kept.filter(([, each]) => typeof each?.ok === "boolean"));
  }

  function tally(id) {
    const kept = reader.get(`guess.${id}`);
    return Array.isArray(kept) ? `${Number(kept[0])}/${Number(kept[1])}` : "";
  }

  function missed(id) {
    const named = reader.get(`guess.${id}`)?.[2];
    return Array.isArray(named) ? named.filter((each) => Array.isArray(each)) : [];
  }

  function mark(n, ok) {
    const id = chapter();
    const asked = document.getElementById(`check-${n}`);
    if (!id || !asked) return;
    const question = asked.querySelector(".check-question").textContent.trim();
    forgotten[id] = { ...marks(id), [n]: { ok, question, at: asked.dataset.at ?? "", section: asked.dataset.section ?? "" } };
    reader.set(`check.${id}`, forgotten[id]);
    show();
  }

  // --- a number that can be typed ---
  class BookCheck extends HTMLElement {
    needs = [];

    connectedCallback() {
      this.addEventListener("submit", (event) => {
        event.preventDefault();
        const { value, unit, step } = this.dataset;
        const judge = { typed: this.field().value, value: Number(value), unit, half_step: Number(step) };
        globalThis.aiInfra?.ask(this, JSON.stringify({ judge }));
      });
      this.addEventListener("focusin", () => globalThis.aiInfra?.start([]));
    }

    field = () => this.querySelector("input");

    show(state, text) {
      this.querySelector("[data-role=said]").textContent = text;
    }

    trouble = (text) => this.show("", text);

    answer({ right, say }, last) {
      if (!last) return;
      this.show("", say);
      this.field().toggleAttribute("aria-invalid", right === null);
      this.dataset.right = String(right);
      if (right !== null) mark(this.dataset.n, right);
    }
  }

  // --- the score at a chapter's foot, and the state of the buttons ---
  function show() {
    const id = chapter();
    if (!id) return;
    const mine = marks(id);
    for (const rate of document.querySelectorAll(".check-rate")) {
      const known = mine[rate.dataset.n]?.ok;
      for (const button of rate.querySelectorAll("button")) button.setAttribute("aria-pressed", String(known === Boolean(button.dataset.ok)));
    }
    const asked = document.querySelectorAll(".check > li").length;
    const ok = Object.values(mine).filter((each) => each.ok).length;
    const guesses = [...document.querySelectorAll('[data-role="guess"]')];
    const answered = guesses.filter((guess) => guess.querySelector("input:checked"));
    const right = answered.filter((guess) => guess.querySelector("input:checked").value === guess.dataset.answer).length;
    const wrong = answered.filter((guess) => guess.querySelector("input:checked").value !== guess.dataset.answer).map((guess) => guess.closest("calc-card"));
    const named = wrong.map((card) => [card.id, card.querySelector(".calc-title").textContent]);
    if (answered.length) reader.set(`guess.${id}`, [right, answered.length, named]);
    const lines = [];
    if (answered.length) lines.push(`先猜，你猜对 ${right}/${answered.length}`);
    if (answered.length < guesses.length) lines.push(`还有 ${guesses.length - answered.length} 个没猜`);
    if (asked) lines.push(`检查点会了 ${ok}/${asked}`);
    const place = document.querySelector('[data-role="score"]');
    if (place) place.textContent = lines.length ? `这一章：${lines.join("；")}。` : "";
  }

  document.addEventListener("click", ({ target }) => {
    const { act, ok } = target.closest?.("[data-act]")?.dataset ?? {};
    if (act === "rate") mark(target.closest(".check-rate").dataset.n, Boolean(ok));
    if (act === "see-answer") document.getElementById(target.hash.slice(1)).open = true;
  });
  document.addEventListener("change", ({ target }) => target.closest?.('[data-role="guess"]') && setTimeout(show));

  // --- the page of weak points ---
  class BookSelfTest extends HTMLElement {
    connectedCallback() {
      this.addEventListener("click", ({ target }) => ACTS[target.dataset.act]?.(this));
      this.querySelector("input").addEventListener("change", ({ target }) => this.import(target));
      this.draw();
    }

    role = (name) => this.querySelector(`[data-role="${name}"]`);
    say = (text) => (this.role("said").textContent = text);

    draw() {
      const weak = [];
      const read = reader.get("read") ?? {};
      for (const row of this.querySelectorAll("[data-chapter]")) {
        const id = row.dataset.chapter;
        const given = Object.entries(marks(id));
        const page = row.querySelector("a").getAttribute("href");
        const wrong = given.filter(([, each]) => !each.ok);
        const cells = { right: given.length - wrong.length || "", wrong: wrong.length || "", guessed: tally(id), read: read[id] ?? "" };
        for (const [role, text] of Object.entries(cells)) row.querySelector(`[data-role="${role}"]`).textContent = text;
        const items = wrong.map(([n, each]) => this.item(page, n, each));
        for (const [card, title] of missed(id)) items.push(make("li", {}, "没猜中：", make("a", { href: `${page}#${encodeURIComponent(card)}`, textContent: String(title) })));
        if (items.length) weak.push(make("p", {}, make("strong", { textContent: row.querySelector("th").textContent })), make("ul", {}, ...items));
      }
      this.none ??= this.role("weak").firstElementChild;
      this.role("weak").replaceChildren(...(weak.length ? weak : [this.none]));
    }

    item(page, n, { question, at, section }) {
      const again = make("a", { href: `${page}#check-${n}`, textContent: String(question) });
      const place = /^#[^\s]+$/.test(at) ? make("a", { href: page + at, textContent: `重读「${section}」` }) : null;
      return make("li", {}, again, place && " → ", place);
    }

    async import(field) {
      if (!field.files.length) return;
      try {
        replaceAll(check(await openFile(field, "my-progress.json")));
        this.say("已导入。");
      } catch (error) {
        this.say(`没有导入，原来的还在。${error.message}`);
      }
      this.draw();
    }
  }

  function check(file) {
    const kept = file?.kept;
    if (file?.schema !== 1 || typeof kept !== "object" || kept === null) throw new Error("这不是「自测与进度」导出的文件：里面应当有 schema 和 kept");
    if (Object.values(kept).some((text) => typeof text !== "string")) throw new Error("文件里的 kept 应当全是文字");
    return kept;
  }

  const ACTS = {
    "all-export"(page) {
      try {
        saveFile("my-progress.json", { schema: 1, kept: everything() });
      } catch {
        page.say(FULL);
      }
    },
    "all-erase"(page) {
      const button = page.querySelector('[data-act="all-erase"]');
      if (!button.dataset.sure) {
        button.dataset.sure = 1;
        button.textContent = "再点一次，真的全部清除";
        return;
      }
      delete button.dataset.sure;
      button.textContent = "全部清除";
      try {
        replaceAll({});
        for (const id of Object.keys(forgotten)) delete forgotten[id];
        page.say("已全部清除：路线、读过的章、自测、我的配置。");
      } catch {
        page.say(FULL);
      }
      page.draw();
    },
  };

  customElements.define("book-check", BookCheck);
  customElements.define("book-self-test", BookSelfTest);
  globalThis.aiInfraCheck = { show }; // the foot asks for its score when it comes into sight
})();
