"""C compiled at run time: what happens without a compiler, with a broken one, and with several processes at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels import explain, linear_recurrence, native
from kernels.linear_recurrence import native as recurrence_native
from kernels.linear_recurrence import native_shared
from kernels.linear_recurrence.native import SOURCE, SPAN
from kernels.testing import CASES, recurrence_inputs, rms_ratio

needs_compiler = pytest.mark.skipif(native.missing() is not None, reason=str(native.missing()))

PROBE = """
import torch
from kernels import explain, linear_recurrence, native
from kernels.testing import CASES, recurrence_inputs
x = recurrence_inputs(CASES["deltanet"], length=20)
print(explain(gate="none", erase="delta"))
print(float(linear_recurrence(**x.arguments())[0].double().sum()))
"""


def probe(program: str = PROBE, **environment: str) -> list[str]:
    """What a program prints in a fresh process, in the folder of the test: a bad compiler may write anywhere."""
    command, place = [sys.executable, "-c", program], environment["PWD"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=place)
    return done.stdout.splitlines()


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The variables of a process with an empty cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return os.environ | {"PWD": str(tmp_path)}


def test_without_a_compiler_the_next_form_runs(environment):
    line, _ = probe(**environment | {"CC": "no-such-compiler"})
    assert line.startswith("linear_recurrence: chunk (cpu; ")
    assert line.endswith("not native: no C compiler: no-such-compiler is not on the PATH)")


BROKEN = {
    "fails": "#!/bin/sh\necho unknown flag >&2\nexit 1\n",
    "is no program": "not a program\n",
    "says nothing readable": "#!/bin/sh\nprintf '\\377\\376' >&2\nexit 1\n",
    "makes no library": "#!/bin/sh\nfor last; do :; done\necho nonsense > $last\n",
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_with_a_broken_compiler_the_next_form_runs(environment, tmp_path, script):
    compiler = tmp_path / "broken-cc"
    compiler.write_text(script)
    compiler.chmod(0o755)
    line, _ = probe(**environment | {"CC": str(compiler)})
    assert line.startswith("linear_recurrence: chunk (cpu; ")
    assert "; not native: " in line


def test_a_compiler_that_cannot_be_understood(environment):
    line, _ = probe(**environment | {"CC": 'gcc "-O2'})
    assert line.endswith('not native: CC=gcc "-O2 cannot be understood: No closing quotation)')


@needs_compiler
def test_a_compiler_may_have_arguments(environment):
    line, _ = probe(**environment | {"CC": "env LANG=C cc"})
    assert line.startswith("linear_recurrence: native (cpu; ")


COMPARISON = """
import torch
from kernels import linear_recurrence
from kernels.testing import CASES, recurrence_inputs, rms_ratio
for name in ("mamba2", "rwkv7"):
    x = recurrence_inputs(CASES[name], length=70).map(lambda t: t.requires_grad_())
    found = []
    for kernel in ("native", "reference"):
        o, state = linear_recurrence(**x.arguments(), kernel=kernel)
        found.append([o, state, *torch.autograd.grad(o.square().sum() + state.square().sum(), x.tensors())])
    print(max(map(rms_ratio, *found)))
"""


@needs_compiler
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_every_compiler_makes_the_same_of_it(environment, compiler):
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    errors = probe(COMPARISON, **environment | {"CC": compiler})
    assert len(errors) == 2
    assert max(map(float, errors)) < 1e-12


def kept(folder: Path) -> dict[Path, int]:
    """The libraries below a folder, with the times they were made."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.so")}


@needs_compiler
def test_a_library_is_compiled_once_and_kept(environment, tmp_path):
    first = probe(**environment)
    made = kept(tmp_path)
    assert sorted(path.name.split("-")[0] for path in made) == ["linear_recurrence", "trial"]
    assert probe(**environment) == first
    assert kept(tmp_path) == made
    assert set((tmp_path / "ecclab" / "native").iterdir()) == set(made)


@needs_compiler
def test_a_damaged_library_is_made_again(environment, tmp_path):
    first = probe(**environment)
    made = kept(tmp_path)
    for path in made:
        path.write_bytes(b"")
    assert probe(**environment) == first
    assert kept(tmp_path).keys() == made.keys()
    assert all(path.stat().st_size for path in made)


@needs_compiler
@pytest.mark.parametrize("cache", ["blocked", "nowhere"])
def test_a_cache_that_cannot_be_used_is_no_obstacle(environment, tmp_path, cache):
    """A file where the folder should be; and no home at all, as for a container's nameless user."""
    (tmp_path / "ecclab").write_text("a file where the folder should be")
    if cache == "nowhere":
        environment |= {"XDG_CACHE_HOME": "relative", "HOME": str(tmp_path / "ecclab")}
    line, _ = probe(**environment)
    assert line.startswith("linear_recurrence: native (cpu; ")
    assert not (tmp_path / "relative").exists()


@needs_compiler
def test_processes_that_compile_the_same_do_not_disturb_each_other(environment):
    command = [sys.executable, "-c", PROBE]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    printed = {process.communicate()[0] for process in running}
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(printed) == 1


@needs_compiler
def test_the_compilers_message_is_passed_on(tmp_path):
    source = tmp_path / "wrong.c"
    source.write_text("int f(void) { return not_declared; }\n")
    with pytest.raises(RuntimeError, match=r"(?s)-DK=3 failed: .*not_declared"):
        native.load(source, K=3)


BLOCKS = {"K": 16, "V": 32, "LANES": 8, "ROWS": 4, "CHUNK": 64}
SOURCES = [(SOURCE, {"K": 5, "V": 8, "LANES": 4, "GATE": g, "ERASE": e, "SPAN": 4}) for g in range(3) for e in range(3)]
SOURCES += [(native_shared.SOURCE, BLOCKS)]


@needs_compiler
@pytest.mark.parametrize(("source", "macros"), SOURCES, ids=str)
def test_the_sources_compile_without_a_warning(source, macros, tmp_path):
    command = ["cc", "-O1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-psabi"]
    command += [f"-D{name}={value}" for name, value in (native.C_TYPES[torch.float32] | macros).items()]
    command.append(f"-I{native.HEADER.parent}")
    done = subprocess.run([*command, "-c", str(source), "-o", str(tmp_path / "a.o")], capture_output=True, text=True)
    assert not done.returncode, done.stderr


@needs_compiler
def test_subnormal_numbers_survive_the_library():
    """A library linked with -ffast-math would have the whole process flush them to zero."""
    native.load(SOURCE, **native.C_TYPES[torch.float32], K=4, V=4, LANES=4, GATE=0, ERASE=0, SPAN=SPAN)
    assert float(torch.tensor(1e-40) * 0.5) > 0


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("value_dim", [1, 3, 24, 80])
def test_any_number_of_threads_and_any_width_of_vectors(threads, value_dim, monkeypatch):
    monkeypatch.setattr(recurrence_native, "THREAD_NUMBERS", 1)
    inputs = recurrence_inputs(replace(CASES["rwkv7"], key_dim=5, value_dim=value_dim), length=2 * SPAN + 1)
    expected = linear_recurrence(**inputs.arguments(), kernel="reference")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = linear_recurrence(**inputs.arguments(), kernel="native")
    finally:
        torch.set_num_threads(before)
    assert rms_ratio(found[0], expected[0]) < 1e-13
    assert rms_ratio(found[1], expected[1]) < 1e-13


@needs_compiler
def test_a_large_state_may_be_asked_for():
    inputs = recurrence_inputs(replace(CASES["simple gla"], key_dim=128, value_dim=64), length=SPAN + 1)
    expected = linear_recurrence(**inputs.arguments(), kernel="reference")
    found = linear_recurrence(**inputs.arguments(), kernel="native")
    assert rms_ratio(found[0], expected[0]) < 1e-13


def gradients(inputs, **options) -> list[torch.Tensor]:
    """Output, state and the gradients of the sum of their squares."""
    inputs = inputs.map(lambda x: x.clone().requires_grad_())
    o, state = linear_recurrence(**inputs.arguments(), **options)
    return [o, state, *torch.autograd.grad(o.square().sum() + state.square().sum(), inputs.tensors())]


@needs_compiler
@pytest.mark.parametrize("vectors", ["AVX512", "AVX2"])
@pytest.mark.parametrize("sizes", [(2, 64, 32), (3, 96, 32), (5, 64, 96)], ids=str)
@pytest.mark.parametrize("length", [1, 3, 9, 64, 77])
def test_shared_keys_in_any_number_of_panels(vectors, sizes, length, monkeypatch):
    if native._vectors()[0] < native.VECTORS[vectors][0]:
        pytest.skip(f"this CPU has no {vectors}")
    monkeypatch.setattr(native, "_vectors", lambda: native.VECTORS[vectors])
    heads, key_dim, value_dim = sizes
    case = replace(CASES["mamba2"], key_dim=key_dim, value_dim=value_dim)
    inputs = recurrence_inputs(case, length=length, heads=heads)
    assert native_shared.unfit(key_dim, value_dim, torch.float64) is None
    found = gradients(inputs, kernel="native")
    for a, b in zip(found, gradients(inputs, kernel="reference"), strict=True):
        assert rms_ratio(a, b) < 1e-12


@needs_compiler
def test_shared_keys_over_threads(monkeypatch):
    monkeypatch.setattr(native_shared, "THREAD_NUMBERS", 1)
    inputs = recurrence_inputs(CASES["mamba2"], batch=5, length=70, heads=2)
    one, before = gradients(inputs, kernel="native"), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        several = gradients(inputs, kernel="native")
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, one, several))


@needs_compiler
def test_a_stream_in_pieces_gives_the_same_bits():
    inputs = recurrence_inputs(CASES["gla"], length=90, dtype=torch.float32)
    whole, state = linear_recurrence(**inputs.arguments(), kernel="native")
    pieces, reached = [], inputs.state
    for start, stop in ((0, 1), (1, 33), (33, 90)):
        part = {**inputs.tokens(slice(start, stop)).arguments(), "state": reached}
        o, reached = linear_recurrence(**part, kernel="native")
        pieces.append(o)
    assert torch.equal(torch.cat(pieces, 1), whole)
    assert torch.equal(reached, state)


@pytest.mark.parametrize(
    ("threads", "items", "least", "ranges"), [(1, 7, 1, 1), (3, 7, 1, 3), (3, 7, 3, 2), (3, 2, 9, 1)]
)
def test_items_are_spread_over_the_threads_that_they_are_worth(threads, items, least, ranges):
    seen, before = [], torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        native.spread(lambda start, stop: seen.append(range(start, stop)) or 0, items, least)
    finally:
        torch.set_num_threads(before)
    assert len(seen) == ranges
    assert sorted(i for part in seen for i in part) == list(range(items))


@needs_compiler
def test_no_memory_is_an_error():
    with pytest.raises(MemoryError, match="scratch"):
        native.spread(lambda start, stop: 1, 4)


def test_another_device_is_refused():
    with pytest.raises(
        ValueError, match="cannot use kernel 'native': it runs on a CPU only; leave the choice to 'auto'"
    ):
        explain(kernel="native", device="cuda")


@pytest.mark.parametrize("form", [recurrence_native, native_shared])
def test_the_job_is_the_struct_of_the_source(form):
    """ctypes cannot see the C struct, so its members are compared by name and order."""
    source = form.SOURCE.read_text()
    body = source[: source.index("} job;")].rsplit("typedef struct {", 1)[1]
    members = []
    for line in body.splitlines():
        declaration = line.split("/*")[0].strip().rstrip(";")
        if declaration:
            names = declaration.split(" ", 1)[1]
            members += [name.strip(" *") for name in names.split(",")]
    assert members == [name for name, _ in form.Job._fields_]
