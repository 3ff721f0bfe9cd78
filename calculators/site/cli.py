"""The same engine in a terminal: ``list``, ``run``, ``figures``, ``build``, ``offline``, ``serve``."""

from __future__ import annotations

import argparse
import json
import sys
import unicodedata
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from calculators.core.calculator import Calculator, Run
from calculators.core.errors import Refusal, refuse
from calculators.core.index import ids, load

EXIT_OK, EXIT_FAILED, EXIT_REFUSED = 0, 1, 2


def main(arguments: list[str]) -> int:
    """Entry point; the exit code says what happened: 0 done, 1 a check failed, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m calculators", description="教程里的计算器，在终端里用。")
    commands = parser.add_subparsers(dest="command", required=True, metavar="命令")
    listing = commands.add_parser("list", help="列出全部计算器，按章")
    running = commands.add_parser("run", help="算一次：run ID 名字=值 …", description="算一次。输入写成 名字=值；model=@文件 读一份 config.json。")
    running.add_argument("id", metavar="ID")
    running.add_argument("inputs", nargs="*", metavar="名字=值")
    figures = commands.add_parser("figures", help="扫描各章：每个绑定的数和每个没绑定的数")
    for each in (listing, running, figures):
        each.add_argument("--json", action="store_true", help="给程序读的 JSON")
    building = commands.add_parser("build", help="取运行时、打包、生成网站")
    building.add_argument("--site-dir", default="site")
    building.add_argument("--site-url", default=None, help="网站最终的地址；决定即时导航能否生效")
    packing = commands.add_parser("offline", help="把生成好的网站装进一个压缩包：解开后双击就能读、能算")
    packing.add_argument("--site-dir", default="site")
    packing.add_argument("--out", default="build/ai-infra-book.zip")
    serving = commands.add_parser("serve", help="在本机预览")
    serving.add_argument("--address", default="127.0.0.1:8000")
    options = parser.parse_args(_help_for_calculator(arguments))
    return COMMANDS[options.command](options)


def _help_for_calculator(arguments: list[str]) -> list[str]:
    """``run ID --help`` describes that calculator's inputs."""
    if len(arguments) >= 3 and arguments[0] == "run" and {"--help", "-h"} & set(arguments[2:]):
        try:
            print(_describe(load(arguments[1])))
        except Refusal as refusal:
            print(refusal, file=sys.stderr)
            raise SystemExit(EXIT_REFUSED) from None
        raise SystemExit(EXIT_OK)
    return arguments


def _list(options: argparse.Namespace) -> int:
    calculators = sorted((load(i) for i in ids()), key=lambda c: (c.chapter, c.id))
    if options.json:
        print(json.dumps([_declaration(c) for c in calculators], ensure_ascii=False, indent=1))
        return EXIT_OK
    for chapter, members in groupby(calculators, key=lambda c: c.chapter):
        print(_chapter(chapter))
        for c in members:
            print(f"  {_pad(c.id, 22)} {c.title}：{c.question}")
    return EXIT_OK


def _chapter(id: str) -> str:
    """A chapter's name; a calculator may live on a page of its own instead (``my-model``)."""
    return f"第 {id} 章" if id[:1].isdigit() or id == "A" else f"单独的一页 {id}"


def _declaration(c: Calculator) -> dict[str, object]:
    return {
        "id": c.id,
        "title": c.title,
        "question": c.question,
        "chapter": c.chapter,
        "needs": list(c.needs),
        "inputs": [
            {"name": i.name, "label": i.label, "type": i.type, "kind": i.kind, "unit": i.unit, "default": i.default, "range": i.range_text() if i.type in ("int", "float") else "",
             "choices": list(i.choices), "help": i.help}
            for i in c.inputs
        ],
        "outputs": [{"name": o.name, "label": o.label, "unit": o.unit, "agreement": o.agreement} for o in c.outputs],
    }  # fmt: skip


def _describe(c: Calculator) -> str:
    rows = [f"{c.title}（{_chapter(c.chapter)}）", c.question, "", "输入："]
    for i in c.inputs:
        allowed = (
            "、".join(str(x) for x in i.choices)
            if i.choices
            else "true、false"
            if i.type == "bool"
            else i.range_text()
            if i.range_text() != "不能大于 "
            else ""
        )
        default = i.text(i.default) or "空（取预设）"
        rows.append(
            f"  {_pad(i.name, 24)} {i.label}，默认 {default}{' ' + i.unit_label if i.unit_label else ''}；{allowed}" + (f"。{i.help}" if i.help else "")
        )
    rows += ["", "输出："] + [f"  {_pad(o.name, 24)} {o.label}" + (f"（{o.unit}）" if o.unit else "") for o in c.outputs]
    return "\n".join(rows)


def _run(options: argparse.Namespace) -> int:
    try:
        calculator = load(options.id)
        run = calculator.run(_given(calculator, options.inputs))
    except Refusal as refusal:
        if options.json:
            print(json.dumps({"errors": [asdict(e) for e in refusal.errors]}, ensure_ascii=False), file=sys.stderr)
        else:
            for error in refusal.errors:
                print(f"{error.field or '输入'}：{error.message}", file=sys.stderr)
        return EXIT_REFUSED
    print(json.dumps(_outcome(calculator, run), ensure_ascii=False) if options.json else _report(calculator, run))
    return EXIT_OK


def _given(calculator: Calculator, pairs: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise refuse(name, "输入要写成 名字=值", f"「{pair[:60]}」", "例如 seq=8192")
        if name in given:
            raise refuse(name, f"{name} 给了两次", f"{given[name]} 和 {value}", "只留一个")
        item = calculator.input(name)
        if item is not None and item.kind == "model" and value.startswith("@"):
            value = _read(name, value[1:])
        given[name] = value
    return given


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(name, "读不了这个文件", path, str(error)) from None


def _outcome(calculator: Calculator, run: Run) -> dict[str, object]:
    return {
        "id": calculator.id,
        "inputs": {name: run.resolved.get(name) if value is None else value for name, value in run.inputs.items()},
        "outputs": {o.name: {"value": run.values[o.name], "unit": o.unit, "text": run.texts[o.name]} for o in calculator.outputs},
        "lines": list(run.lines),
        "verdict": run.verdict,
        "notes": [*run.notes, *calculator.cautions(run)],
    }


def _report(calculator: Calculator, run: Run) -> str:
    rows = [calculator.title, ""]
    width = max(_width(o.label) for o in calculator.outputs)
    rows += [f"  {_pad(o.label, width)}  {run.texts[o.name]}" for o in calculator.outputs]
    rows += ["", *(f"  {line}" for line in run.lines), "", run.verdict, *run.notes, *calculator.cautions(run)]
    return "\n".join(rows)


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, width: int) -> str:
    return text + " " * max(0, width - _width(text))


def _figures(options: argparse.Namespace) -> int:
    from calculators.site.figures import scan

    bound, free = scan(Path("docs"))
    wrong = [b for b in bound if not b.ok]
    if options.json:
        print(json.dumps({"bound": [asdict(b) for b in bound], "unbound": [asdict(u) for u in free]}, ensure_ascii=False, default=str))
    else:
        for b in wrong:
            print(f"{b.file}:{b.line}: [{b.text}]({b.target}) {b.message}")
        for u in free:
            print(f"{u.file}:{u.line}: 没有出处：{u.text}")
        print(f"绑定 {len(bound)} 个，不一致 {len(wrong)} 个，没有出处 {len(free)} 个")
    return EXIT_FAILED if wrong or free else EXIT_OK


def _build(options: argparse.Namespace) -> int:
    from calculators.site.build import build

    return build(options.site_dir, options.site_url)


def _offline(options: argparse.Namespace) -> int:
    from calculators.site.offline import OfflineError, write_offline

    try:
        size = write_offline(Path(options.site_dir), Path(options.out))
    except OfflineError as error:
        print(error, file=sys.stderr)
        return EXIT_FAILED
    print(f"{options.out}：{size / 1e6:.1f} MB，解开后双击里面的 index.html")
    return EXIT_OK


def _serve(options: argparse.Namespace) -> int:
    from calculators.site.build import serve

    return serve(options.address)


COMMANDS = {"list": _list, "run": _run, "figures": _figures, "build": _build, "offline": _offline, "serve": _serve}
