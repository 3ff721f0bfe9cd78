// <calc-card>: the card's answer for the chapter's values is in the HTML already; changed values are recalculated by
// Python (calc-engine.js).  Life cycle: connect (enable the form, take the values of a link or of this tab's memory) →
// change → ask → answer; back at the chapter's values the prerendered answer returns.
// Custom elements outlive the theme's instant navigation by themselves: nothing here listens to the theme.
(() => {
  "use strict";
  if (customElements.get("calc-card")) return; // a theme may run the script again
  const { readLink, clip, reader, tab } = globalThis.aiInfraState;
  const NO_ENGINE = { ask: (card) => card.trouble("calc-engine.js 没有载入；下面仍是改数以前的结果"), forget() {}, start() {}, prefetch() {} };
  const engine = () => globalThis.aiInfra ?? NO_ENGINE;

  // Did the reader come back (then what was typed wins over the link in the address) or follow a link?
  let cameBack = ["back_forward", "reload"].includes(performance.getEntriesByType?.("navigation")[0]?.type);
  addEventListener("popstate", () => (cameBack = true), true);
  addEventListener("click", () => (cameBack = false), true);

  // --- controls ---
  const read = (control) => (control.type === "checkbox" ? String(control.checked) : control.value);
  const box = (control) => control.closest(".calc-field");

  function accepts(control, text) {
    if (control.type === "checkbox") return text === "true" || text === "false";
    return control.tagName !== "SELECT" || [...control.options].some((option) => option.value === text) || isPasted(control, text);
  }

  // The text of a config.json in a model field: an option that the page did not have (calc-mine.js).
  const isPasted = (control, text) => control.dataset.pastes !== undefined && globalThis.aiInfraMine?.isConfig(text);

  function write(control, text) {
    if (control.type === "checkbox") control.checked = text === "true";
    else {
      if (isPasted(control, text) && control.value !== text) control.add(new Option(globalThis.aiInfraMine.nameOf("model", text), text));
      control.value = text;
    }
  }

  function placeSlider(slider, text) {
    const stops = JSON.parse(slider.dataset.stops);
    const distance = (stop) => Math.abs(Number(stop) - Number(text));
    if (text.trim() && !Number.isNaN(Number(text))) {
      slider.value = stops.indexOf(stops.reduce((best, stop) => (distance(stop) < distance(best) ? stop : best)));
    }
    slider.setAttribute("aria-valuetext", text || stops[slider.value]);
  }

  class CalcCard extends HTMLElement {
    connectedCallback() {
      if (document.readyState === "loading") addEventListener("DOMContentLoaded", () => this.wake(), { once: true });
      else this.wake();
    }

    disconnectedCallback() {
      engine().forget(this);
      this.asked = null;
    }

    wake() {
      if (this.form || !this.isConnected) return;
      this.form = this.querySelector("form");
      this.result = this.role("result");
      this.page = location.pathname;
      this.key = `${this.dataset.id}~${this.dataset.n}`;
      this.needs = (this.dataset.needs || "").split(" ").filter(Boolean);
      this.controls = [...this.form.querySelectorAll("[name][data-given]")];
      this.byName = new Map(this.controls.map((control) => [control.name, control]));
      this.sliders = new Map([...this.form.querySelectorAll(".calc-slider")].map((slider) => [slider.dataset.for, slider]));
      this.prerendered = this.result.innerHTML;
      this.base = Object.fromEntries([...this.result.querySelectorAll("[data-output]")].map((o) => [o.dataset.output, o.dataset.text]));
      this.first = this.controls.map((control) => ({ control, placeholder: control.placeholder, unused: box(control).hasAttribute("data-unused") }));
      this.asked = null; // the request whose answer stands or is awaited
      this.form.querySelector(".calc-fields").disabled = false;
      this.listen();
      this.openGuess();
      const link = readLink(location.search);
      const typed = tab.get(this.typedKey());
      if (link.card === this.key && !(cameBack && typed)) this.take(link);
      else if (typed) this.put(typed);
    }

    role = (name) => this.querySelector(`[data-role="${name}"]`);
    typedKey = () => `typed.${this.page}#${this.key}`;

    listen() {
      const { form } = this;
      this.addEventListener("pointerenter", () => engine().prefetch(), { once: true });
      for (const touch of ["focusin", "pointerdown"]) form.addEventListener(touch, () => engine().start(this.needs));
      form.addEventListener("submit", (event) => event.preventDefault());
      form.addEventListener("input", ({ target }) => {
        if (target.dataset.for) {
          write(this.byName.get(target.dataset.for), JSON.parse(target.dataset.stops)[target.value]);
          this.changed();
        } else if (["text", "textarea"].includes(target.type) && target.name) this.changed();
      });
      form.addEventListener("change", ({ target }) => target.name && this.changed());
      this.addEventListener("click", ({ target }) => ACTIONS[target.closest?.("[data-act]")?.dataset.act]?.(this));
    }

    // --- values ---
    takes = accepts;
    values = () => Object.fromEntries(this.controls.map((control) => [control.name, read(control)]));

    put(values) {
      for (const [name, text] of Object.entries(values)) {
        const control = this.byName.get(name);
        if (control && accepts(control, text)) write(control, text);
      }
      this.changed();
    }

    // A link gives what differs from the calculator's own defaults.
    take({ values, ignored }) {
      const put = Object.fromEntries(this.controls.map((control) => [control.name, control.dataset.default]));
      ignored = [...ignored];
      for (const [name, text] of values) {
        const control = this.byName.get(name);
        if (!control) ignored.push(`${clip(name)}（没有这个输入）`);
        else if (!accepts(control, text)) ignored.push(`${clip(name)}=${clip(text)}（不在可选项里）`);
        else {
          put[name] = text;
          const folded = control.closest("details");
          if (folded) folded.open = true;
        }
      }
      this.put(put);
      this.remark = "";
      if (ignored.length) {
        const more = ignored.length > 3 ? "等" : "";
        this.remark = `链接里有 ${ignored.length} 处没有采用：${ignored.slice(0, 3).join("、")}${more}`;
        if (!this.dataset.state) this.show("", this.remark);
      }
      requestAnimationFrame(() => this.scrollIntoView({ block: "start" }));
    }

    changed() {
      const differing = this.controls.filter((control) => read(control) !== control.dataset.given);
      for (const control of this.controls) {
        box(control).classList.toggle("is-changed", differing.includes(control));
        if (this.sliders.has(control.name)) placeSlider(this.sliders.get(control.name), read(control));
      }
      this.querySelector(`[data-act="reset"]`).hidden = !differing.length;
      tab.set(this.typedKey(), differing.length ? Object.fromEntries(differing.map((c) => [c.name, read(c)])) : null);
      this.remark = "";
      if (!differing.length) return this.restore();
      if (this.dataset.guess) this.dataset.guess = "done";
      const request = JSON.stringify({ id: this.dataset.id, key: this.id, values: this.values(), base: this.base });
      if (request === this.asked) return;
      this.asked = request;
      engine().ask(this, request);
    }

    restore() {
      engine().forget(this);
      if (this.asked !== null) this.replace(this.prerendered);
      this.asked = null;
      this.first.forEach(({ control, placeholder, unused }) => this.mark(control, { message: "", error: false, placeholder, used: !unused }));
      this.show("", "");
    }

    // --- what the engine calls ---
    say(text) {
      this.remark = text;
      this.show(this.dataset.state || "", text);
    }

    show(state, text) {
      this.dataset.state = state;
      this.role("status").textContent = text;
    }

    answer({ ok, html, say, fields }, last) {
      if (ok) this.replace(html);
      this.toggleAttribute("data-stale", !ok);
      for (const control of this.controls) {
        const told = fields[control.name];
        if (told || !ok) this.mark(control, told || { message: "", error: false, placeholder: null, used: true });
      }
      const beside = Object.keys(fields).length > 0;
      this.show(last ? "" : "running", ok || beside ? this.remark : say);
      if (last) this.role("live").textContent = say;
    }

    trouble(text) {
      this.asked = ""; // so that the same value may be tried again
      this.show("", text);
    }

    mark(control, { message, error, placeholder, used }) {
      const field = box(control);
      field.classList.toggle("is-wrong", error);
      field.querySelector(".calc-msg").textContent = message;
      if (error) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
      if (placeholder !== null && control.type === "text") control.placeholder = placeholder;
      if (!error) field.toggleAttribute("data-unused", !used);
      const folded = error && control.closest("details");
      if (folded) folded.open = true;
    }

    // The only place where HTML is written; what the reader has unfolded stays unfolded.
    replace(html) {
      const folds = () => [...this.result.querySelectorAll("details")];
      const open = folds().map((fold) => fold.open);
      const focused = folds().findIndex((fold) => fold.firstElementChild === document.activeElement);
      this.result.innerHTML = html;
      folds().forEach((fold, i) => (fold.open = open[i] ?? fold.open));
      folds()[focused]?.firstElementChild.focus();
    }

    // --- 先猜 ---
    openGuess() {
      this.guess = this.role("guess");
      if (!this.guess) return;
      this.guess.addEventListener("change", ({ target }) => this.guessed(target.value, true));
      const before = reader.get(`guess.${this.page}#${this.key}`);
      if (before !== null) this.guessed(before, false);
    }

    guessed(value, keep) {
      const radio = [...this.guess.querySelectorAll("input")].find((input) => input.value === value);
      if (radio) {
        const note = this.role("guess-note");
        radio.checked = true;
        note.textContent = value === this.guess.dataset.answer ? note.dataset.right : note.dataset.wrong;
        note.hidden = false;
      } else this.guess.hidden = true;
      this.dataset.guess = "done";
      if (keep) reader.set(`guess.${this.page}#${this.key}`, value);
    }

    // --- links ---
    address() {
      const differing = this.controls.filter((control) => read(control) !== control.dataset.default && !isPasted(control, read(control)));
      const query = differing.map((control) => `&i.${encodeURIComponent(control.name)}=${encodeURIComponent(read(control))}`);
      return `${location.origin}${location.pathname}?calc=${encodeURIComponent(this.key)}${query.join("")}#${this.id}`;
    }

    async copyAddress() {
      const url = this.address();
      history.replaceState(history.state, "", url); // the theme keeps its scroll position in the state
      try {
        await navigator.clipboard.writeText(url);
        const pasted = this.controls.some((control) => isPasted(control, read(control)));
        this.show(this.dataset.state || "", pasted ? "链接已复制（不含你的 config.json：放不下）" : "链接已复制");
      } catch {
        let field = this.querySelector(".calc-link");
        if (!field) {
          field = Object.assign(document.createElement("input"), { className: "calc-link", type: "text", readOnly: true });
          field.setAttribute("aria-label", "这组输入的链接");
          this.querySelector(".calc-actions").append(field);
        }
        field.value = url;
        field.select();
      }
    }
  }

  const ACTIONS = {
    reset: (card) => {
      card.put(Object.fromEntries(card.controls.map((control) => [control.name, control.dataset.given])));
      card.querySelector('[data-act="copy"]').focus({ preventScroll: true }); // the button pressed is hidden now
    },
    copy: (card) => card.copyAddress(),
    skip: (card) => card.guessed("skip", true),
  };

  customElements.define("calc-card", CalcCard);
})();
