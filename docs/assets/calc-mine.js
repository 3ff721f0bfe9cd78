// 「我的配置」: a model and a card, set once, kept in this browser, offered by every card of the book.
// <calc-mine> sits in each card that takes a model or an accelerator; <my-config> is the panel of the page my-model.
// A pasted, chosen or dropped config.json becomes an option of the card's model field; Python reads it and judges it.
(() => {
  "use strict";
  if (customElements.get("calc-mine")) return; // a theme may run the script again
  const { clip, reader, saveFile, openFile, LARGEST } = globalThis.aiInfraState;
  const KEY = "mine";
  const SCHEMA = 1;
  const KINDS = ["model", "gpu"];
  const changed = new EventTarget();
  const known = () => globalThis.aiInfraBook?.choices || {};

  // --- what is kept ---
  function load() {
    try {
      return check(reader.get(KEY));
    } catch {
      return {}; // blocked, empty, or not ours
    }
  }

  function save(mine) {
    const kept = reader.set(KEY, Object.keys(mine).length ? { schema: SCHEMA, ...mine } : null);
    current = mine;
    changed.dispatchEvent(new Event("change"));
    return kept ? "" : "浏览器不让保存（隐私模式或空间已满）：这一页还能用，关掉就没了";
  }

  // A file that somebody hands us: the reason when it will not do.
  function check(file) {
    if (file === null || typeof file !== "object" || Array.isArray(file)) throw new Error("这不是「我的配置」导出的文件：里面应当是一个 JSON 对象");
    if (file.schema !== SCHEMA) throw new Error(`这个文件的版本是 ${clip(String(file.schema))}，这里只认版本 ${SCHEMA}：请重新导出`);
    const mine = {};
    for (const kind of KINDS) {
      const text = file[kind];
      if (text === undefined) continue;
      if (typeof text !== "string") throw new Error(`文件里的 ${kind} 应当是文字`);
      if (!(text in (known()[kind] || {})) && !(kind === "model" && isConfig(text))) throw new Error(`没有叫「${clip(text)}」的${kind === "model" ? "模型" : "加速卡"}：目录里可能改了名，请重新选`);
      mine[kind] = text;
    }
    return mine;
  }

  const isConfig = (text) => text.trimStart().startsWith("{");

  function nameOf(kind, text) {
    if (!isConfig(text)) return known()[kind]?.[text] || text;
    try {
      const config = JSON.parse(text);
      return `config.json：${clip(String(config._name_or_path || config.architectures?.[0] || config.model_type || "未命名"))}`;
    } catch {
      return "粘贴的 config.json";
    }
  }

  let current = load();
  const summary = () => KINDS.filter((kind) => current[kind]).map((kind) => nameOf(kind, current[kind])).join("，");
  const controls = (card, kind) => [...card.querySelectorAll(`[data-kind="${kind}"] select[name]`)];

  // --- in a card ---
  class CalcMine extends HTMLElement {
    connectedCallback() {
      this.card = this.closest("calc-card");
      this.show = () => {
        const name = summary();
        this.querySelector('[data-role="mine-text"]').textContent = name ? `我的配置：${name}` : "还没有「我的配置」";
        this.querySelector('[data-act="mine-use"]').hidden = !name;
        this.hidden = false;
      };
      changed.addEventListener("change", this.show);
      this.show();
    }

    disconnectedCallback() {
      changed.removeEventListener("change", this.show);
    }
  }

  function use(card) {
    const values = {};
    const refused = [];
    for (const kind of KINDS) {
      if (!current[kind]) continue;
      for (const control of controls(card, kind)) {
        if (card.takes(control, current[kind])) values[control.name] = current[kind];
        else refused.push(nameOf(kind, current[kind]));
      }
    }
    card.put(values);
    if (refused.length) card.say(`这张卡片不收 ${refused.join("、")}：不在它的可选项里`);
  }

  function remember(card) {
    const mine = { ...current };
    for (const kind of KINDS) {
      const control = controls(card, kind)[0];
      if (control) mine[kind] = control.value;
    }
    card.say(save(mine) || `已记作我的配置：${summary()}`);
  }

  // --- a config.json, pasted, chosen or dropped ---
  function adopt(card, text) {
    const control = card.querySelector("select[data-pastes]");
    if (!control) return;
    if (!isConfig(text)) {
      const message = "这不像一份 config.json：打开那个文件，把 { 到 } 的全部内容贴进来；下面仍是改数以前的结果";
      return card.mark(control, { message, error: true, placeholder: null, used: true });
    }
    card.put({ [control.name]: text.trim() });
  }

  async function read(card, file) {
    if (!file) return;
    if (file.size > LARGEST) return card.say(`${clip(file.name)} 有 ${(file.size / 1e6).toFixed(1)} MB，不会是 config.json：请选模型仓库里那个几 KB 的文件`);
    adopt(card, await file.text());
  }

  document.addEventListener("click", ({ target }) => {
    const act = target.closest?.("[data-act]")?.dataset.act;
    const card = target.closest?.("calc-card");
    if (act === "mine-use") use(card);
    if (act === "mine-set") remember(card);
  });
  document.addEventListener("input", ({ target }) => {
    if (target.dataset?.paste === undefined) return;
    const card = target.closest("calc-card");
    if (target.value.trim()) adopt(card, target.value);
    else card.mark(card.querySelector("select[data-pastes]"), { message: "", error: false, placeholder: null, used: true });
  });
  document.addEventListener("change", ({ target }) => {
    if (target.dataset?.file !== undefined) read(target.closest("calc-card"), target.files[0]).then(() => (target.value = ""));
  });
  document.addEventListener("dragover", (event) => event.target.closest?.("calc-card:has([data-pastes])") && event.preventDefault());
  document.addEventListener("drop", (event) => {
    const card = event.target.closest?.("calc-card:has([data-pastes])");
    if (!card || !event.dataTransfer.files.length) return;
    event.preventDefault();
    read(card, event.dataTransfer.files[0]);
  });
  addEventListener("storage", ({ key }) => {
    if (key !== null && !key.endsWith(`.${KEY}`)) return;
    current = load(); // another tab of the book
    changed.dispatchEvent(new Event("change"));
  });

  // --- the panel ---
  class MyConfig extends HTMLElement {
    connectedCallback() {
      this.show = () => {
        this.role("text").textContent = summary() || "还没有设置：在上面选好模型，按「记作我的配置」。";
        for (const act of ["export", "erase"]) this.querySelector(`[data-act="mine-${act}"]`).disabled = !summary();
      };
      this.hidden = false;
      changed.addEventListener("change", this.show);
      this.addEventListener("click", ({ target }) => this[target.dataset?.act?.replace("mine-", "")]?.());
      this.querySelector("input").addEventListener("change", ({ target }) => this.import(target));
      this.show();
    }

    disconnectedCallback() {
      changed.removeEventListener("change", this.show);
    }

    role = (name) => this.querySelector(`[data-role="mine-${name}"]`);

    export() {
      saveFile("my-config.json", { schema: SCHEMA, ...current });
    }

    erase() {
      this.role("status").textContent = save({}) || "已清除。";
    }

    async import(field) {
      if (!field.files.length) return;
      try {
        this.role("status").textContent = save(check(await openFile(field, "my-config.json"))) || "已导入。";
      } catch (error) {
        this.role("status").textContent = `没有导入。${error.message}`;
      }
    }
  }

  globalThis.aiInfraMine = { isConfig, nameOf };
  customElements.define("calc-mine", CalcMine);
  customElements.define("my-config", MyConfig);
})();
