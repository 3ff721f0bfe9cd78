"""The project scripts of chapter 24, run as a reader runs them: tiny sizes, another directory, no PyTorch; what they print goes into their cards."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from calculators.core.index import load

FOLDER = Path(__file__).parents[1] / "docs" / "projects"
LONGEST = 80
SCRIPTS = {
    "P1": ("roofline.py", "--max-n 256 --gemv-n 256 --copy-mb 1 --repeats 3"),
    "P2": ("memory_probe.py", "--layers 2 --width 64 --vocab 256 --seq 64"),
    "P3": ("train_tiny.py", "--layers 1 --width 64 --vocab 256 --seq 16 --steps 3 --backend numpy"),
    "P4": ("ring_mp.py", "--n 2 --max-mb 16 --repeats 5"),
    "P5": ("pipe_mp.py", "--p 2 --m 2,4 --f-ms 5 --b-ms 10"),
    "P6": ("decode.py", "--layers 1 --width 64 --max-batch 4 --repeats 3 --backend numpy"),
    "P7": ("ckpt.py", "--mb 2 --repeats 3"),
    "P8": ("loader.py", "--workers 2,4 --load-ms 20 --step-ms 4 --batches 16"),
    "C1": ("plan_check.py", ""),
    "C2": ("ring_vs_star.py", "--n 3 --mb 0.3 --repeats 3"),
    "C3": ("paper_table.py", "--table megascale"),
    "C4": ("serve_load.py", "--rates 20 --requests 9 --out-tokens 4 --base-ms 5"),
}
CARDS = {"P1": ("roofline-from-samples", "samples"), "P4": ("fit-alpha-beta", "samples")}
REPORT = ("project-report", "csv")
NEEDS_NUMPY = ("P1", "P2", "P3", "P4", "P6", "C2")
BARE = ("P5", "P7", "P8", "C1", "C3", "C4")

every_project = pytest.mark.parametrize("project", SCRIPTS)


def start(script, *words, without=("torch",), folder=None, spawn=False, cwd):
    """Run a script as on a machine that lacks some packages; a module of that name that raises ImportError stands in its way."""
    hidden = Path(cwd) / "hidden"
    hidden.mkdir(exist_ok=True)
    for name in without:
        (hidden / f"{name}.py").write_text("raise ImportError\n", encoding="utf-8")
    if spawn:  # how macOS and Windows start processes
        (hidden / "sitecustomize.py").write_text("import multiprocessing\n\nmultiprocessing.set_start_method('spawn')\n", encoding="utf-8")
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {
        "PYTHONPATH": str(hidden),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str((folder or FOLDER) / script), *words]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8", timeout=120, check=False)


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Each script's output at tiny sizes, run once."""
    cache = {}

    def output(project):
        if project not in cache:
            script, words = SCRIPTS[project]
            done = start(script, *words.split(), cwd=tmp_path_factory.mktemp(project))
            assert done.returncode == 0, done.stderr
            assert not done.stderr
            cache[project] = done.stdout
        return cache[project]

    return output


def block(text):
    """What stands between the two marks, as a reader would copy it."""
    found = re.findall(r"^# CSV 开始.*\n((?:.*\n)*?)# CSV 结束$", text, re.MULTILINE)
    assert len(found) == 1, "one block"
    return found[0]


@every_project
def test_the_block_goes_into_its_card_and_comes_out_as_a_verdict(project, printed):
    """Script → CSV → card → verdict; the whole terminal pasted gives the same."""
    id, field = CARDS.get(project, REPORT)
    calculator = load(id)
    body = block(printed(project))
    assert f"贴进第 24 章的卡片「{calculator.title}」" in printed(project)

    found = calculator.run({field: body})

    assert found.verdict
    assert calculator.run({field: printed(project)}).verdict == found.verdict
    rows = [line for line in body.splitlines() if line and not line.startswith("#")][1:]
    counted = {"roofline-from-samples": lambda v: len(v["gflop_s"]), "fit-alpha-beta": lambda v: v["points"], "project-report": lambda v: v["items"]}
    assert counted[id](found.values) == len(rows)
    if id == "project-report":
        assert found.values["project"] == project


@pytest.mark.parametrize("project", ["P4", "P5", "P8"])
def test_processes_may_be_spawned(project, tmp_path):
    script, words = SCRIPTS[project]
    done = start(script, *words.split(), cwd=tmp_path, spawn=True)

    assert done.returncode == 0
    assert not done.stderr
    assert block(done.stdout)


@every_project
def test_the_wrong_card_names_the_right_one(project, printed):
    from calculators.core.errors import Refusal

    id, _ = CARDS.get(project, REPORT)
    for other, field in {*CARDS.values(), REPORT}:
        if other != id:
            with pytest.raises(Refusal, match=load(id).title):
                load(other).run({field: block(printed(project))})


@every_project
def test_help_and_bad_arguments(project, tmp_path):
    script, _ = SCRIPTS[project]
    told = start(script, "--help", cwd=tmp_path, without=("torch", "numpy"))
    unknown = start(script, "--nope", "1", cwd=tmp_path, without=("torch", "numpy"))

    assert told.returncode == 0
    assert project in told.stdout
    assert "参数：" in told.stdout
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("没有「--nope」这个参数。可用：--")
    assert len(unknown.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("script", "words", "rule"),
    [
        ("roofline.py", "--max-n abc", "要填整数"),
        ("roofline.py", "--max-n", "后面要有一个值"),
        ("roofline.py", "--max-n --repeats", "后面要有一个值"),
        ("roofline.py", "--dtype int3", "可填 float32、bfloat16"),
        ("roofline.py", "--dtype bfloat16", "NumPy 没有 bfloat16"),
        ("train_tiny.py", "--width 100", "64 的倍数"),
        ("train_tiny.py", "--sdpa", "要 PyTorch"),
        ("train_tiny.py", "--mfu nan", "0.001 到 1.0"),
        ("memory_probe.py", "--width 65", "64 的倍数"),
        ("ring_mp.py", "--n 1", "2 到 64"),
        ("ring_mp.py", "--max-mb inf", "之间"),
        ("pipe_mp.py", "--m 4,x", "逗号隔开"),
        ("pipe_mp.py", "--m 0", "1 到 1024"),
        ("ckpt.py", "--dir /nope/nope", "能写的目录"),
        ("loader.py", "--workers 4,,2", "逗号隔开"),
        ("plan_check.py", "--plan /nope.toml", "--example"),
        ("paper_table.py", "--table none", "zero、megatron、megascale、llama3"),
        ("serve_load.py", "--requests 1e3", "要填整数"),
    ],
)
def test_declines(script, words, rule, tmp_path):
    done = start(script, *words.split(), cwd=tmp_path)

    assert done.returncode == 2
    assert rule in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("project", NEEDS_NUMPY)
def test_without_numpy_one_sentence_says_what_to_install(project, tmp_path):
    done = start(SCRIPTS[project][0], cwd=tmp_path, without=("torch", "numpy"))

    assert done.returncode == 1
    assert "python3 -m pip install numpy" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("project", BARE)
def test_the_others_need_the_standard_library_only(project, tmp_path):
    script, words = SCRIPTS[project]
    done = start(script, *words.split(), cwd=tmp_path, without=("torch", "numpy"))

    assert done.returncode == 0, done.stderr
    assert block(done.stdout)


@every_project
def test_a_script_alone_asks_for_its_neighbour(project, tmp_path):
    """Downloaded without kit.py: a sentence, no traceback."""
    script, _ = SCRIPTS[project]
    (tmp_path / script).write_bytes((FOLDER / script).read_bytes())
    done = start(script, folder=tmp_path, cwd=tmp_path)

    assert done.returncode == 1
    assert "缺 kit.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_may_lie_beside_its_script(tmp_path):
    """Downloaded one by one there is no folder ``tables``."""
    for name in ("kit.py", "paper_table.py", "tables/llama3.csv"):
        (tmp_path / Path(name).name).write_bytes((FOLDER / name).read_bytes())
    found = start("paper_table.py", "--table", "llama3", folder=tmp_path, cwd=tmp_path)
    missing = start("paper_table.py", "--table", "zero", folder=tmp_path, cwd=tmp_path)

    assert block(found.stdout)
    assert missing.returncode == 1
    assert "把 zero.csv 放在脚本旁边" in missing.stderr


def test_outside_the_repository_the_plan_says_where_to_run(tmp_path):
    for name in ("kit.py", "plan_check.py"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    done = start("plan_check.py", "--repo", str(tmp_path), folder=tmp_path, cwd=tmp_path)

    assert done.returncode in (0, 1)  # 0 where the book is installed
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or "在书的仓库里跑" in done.stderr


@pytest.mark.parametrize(("gflop_s", "kind", "lever"), [("0.001", "bytes", "gb_s"), ("1e6", "throughput", "gflop_s")])
def test_a_bend_passes_within_a_factor_of_two_on_either_side(gflop_s, kind, lever, tmp_path):
    words = f"--layers 2 --width 128 --max-batch 1024 --repeats 3 --gb-s 1 --gflop-s {gflop_s}"
    rows = [row.split(",") for row in block(start("decode.py", *words.split(), cwd=tmp_path).stdout).splitlines() if "拐点" in row]

    assert len(rows) == 1
    assert rows[0][2] == kind
    assert rows[0][5].startswith(f"{lever}=")
    assert load("project-report").run({"csv": ",".join(rows[0])}).values["worst_ratio"] > 2


@every_project
def test_help_keeps_its_columns_apart(project, tmp_path):
    told = start(SCRIPTS[project][0], "--help", cwd=tmp_path).stdout.partition("参数：")[2]

    assert all(re.match(r"  --[\w-]+ +\S", line) for line in told.strip("\n").splitlines())


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.name)
def test_scripts_are_short_and_import_nothing_else(path):
    text = path.read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 9))  # what the page promises
    mine = {p.stem for p in FOLDER.glob("*.py")}

    assert len(text.splitlines()) <= LONGEST
    assert ast.get_docstring(ast.parse(text))
    for node in ast.walk(ast.parse(text)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in (n.partition(".")[0] for n in names):
            assert name in sys.stdlib_module_names | mine | ({"torch"} if path.name == "tiny_gpt_torch.py" else set()), name


def test_the_gradients_of_the_small_gpt_agree_with_differences():
    np = pytest.importorskip("numpy")
    NumpyGPT = runpy.run_path(str(FOLDER / "tiny_gpt.py"))["NumpyGPT"]
    gpt = NumpyGPT(np, 2, 128, 30)
    gpt.weights = [w.astype(np.float64) * 10 for w in gpt.weights]
    tokens = np.random.default_rng(1).integers(0, 30, (2, 7))

    def loss():
        probs, _ = gpt.forward(tokens[:, :-1])
        return -np.log(np.take_along_axis(probs, tokens[:, 1:, None], -1)).mean()

    probs, saved = gpt.forward(tokens[:, :-1])
    grads = gpt.backward(probs, tokens[:, 1:], saved)
    for weight, grad in zip(gpt.weights, grads, strict=True):
        at = (int(tokens[0, 0]), 3) if weight.shape == (30, 128) else tuple(n // 3 for n in weight.shape)
        kept = weight[at]
        weight[at] = kept + 1e-5
        above = loss()
        weight[at] = kept - 1e-5
        below = loss()
        weight[at] = kept
        assert grad[at] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-9)
    assert sum(w.size for w in gpt.weights) == 12 * 2 * 128 * 128 + 2 * 30 * 128


def test_memory_is_what_the_account_says(printed):
    """Each block within 5 %: the account is exact, the count is real."""
    found = load("project-report").run({"csv": block(printed("P2"))})

    blocks = [row for row in found.values["rows"] if row["item"] != "峰值"]
    assert len(blocks) == 4
    assert all(abs(row["ratio"] - 1) < 0.05 for row in blocks)


def test_one_f_one_b_holds_fewer_micro_batches(printed):
    assert "各段最多压着 [4, 4] 个微批" in printed("P5")
    assert "各段最多压着 [2, 1] 个微批" in printed("P5")


def test_the_plan_is_recomputed_by_the_calculators_of_the_site(printed):
    found = load("train-cost").run({"model": "llama-3-70b", "n_gpus": "64", "mfu": "0.5", "tokens": "1e12", "goodput": "0.95"})

    assert f"C1,天数,time,天,0.05,,163,{found.values['days']:.6g}" in printed("C1")


@pytest.mark.parametrize(("table", "wrong"), [("zero", 0), ("megatron", 0), ("megascale", 2), ("llama3", 1)])
def test_the_printed_tables_and_their_known_slips(table, wrong, tmp_path):
    """MegaScale Table 2 has two cells and Llama 3 Table 5 one percentage that contradict their own table."""
    done = start("paper_table.py", "--table", table, cwd=tmp_path)

    assert done.stdout.count("<- 对不上") == wrong


def test_the_root_of_a_star_carries_n_times_the_bytes(printed):
    """Section C2: 2(n−1) against 2(n−1)/n."""
    moved = [float(x) for x in re.findall(r"卡 0 收发 ([\d.]+) MB", printed("C2"))]

    assert moved[0] / (moved[1] / 2) == pytest.approx(3)  # n; a card of the ring sends while it receives, so half of its bytes take the time


def test_the_page_quotes_what_the_script_prints(tmp_path):
    """The rows of C3's card on the page are the script's own."""
    page = (FOLDER.parent / "24-projects.md").read_text(encoding="utf-8")
    quoted = re.search(r'csv="(C3[^"]*)"', page)
    assert quoted
    printed_rows = block(start("paper_table.py", "--table", "llama3", cwd=tmp_path).stdout).splitlines()

    assert set(quoted[1].split("; ")) <= set(printed_rows)


def test_the_page_offers_every_file():
    page = (FOLDER.parent / "24-projects.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(projects/([\w./]+)\)", page))

    assert linked == {p.relative_to(FOLDER).as_posix() for pattern in ("*.py", "tables/*.csv") for p in FOLDER.glob(pattern)}
