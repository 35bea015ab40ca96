"""What serves a port on this host, read at the point of use.

Runs on the target host with any Python from 3.7 on and nothing but the standard library. Reads a
JSON request from the file named first, and prints one JSON object: each field with its value, and
under `problems` why a field is missing. Nothing here changes the host.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import getpass
import glob
import http.client
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time

HTTP_TIMEOUT_S = 10
COMMAND_TIMEOUT_S = 60

PACKAGES = [
    "sgl-jax",
    "sglang-jax",
    "sglang",
    "vllm",
    "vllm-tpu",
    "llama-cpp-python",
    "xllamacpp",
    "jax",
    "jaxlib",
    "libtpu",
    "libtpu-nightly",
    "flax",
    "torch",
    "torch-xla",
    "transformers",
    "tokenizers",
    "flashinfer-python",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-runtime-cu13",
    "nvidia-cuda-runtime",
    "evalscope",
]
"""Distributions whose versions say which engine answers, each in the server's own environment."""

ENGINES = (
    ("sgl_jax", "sglang-jax"),
    ("sglang", "sglang"),
    ("vllm", "vllm"),
    ("llama", "llama.cpp"),
    ("xllamacpp", "llama.cpp"),
)
"""What a command line or a distribution has in it, and the engine's name."""

EVALUATORS = re.compile(
    r"(^|[/\s])(evalscope\s+(eval|perf)|run_eval\.py|bench_serving(\.py)?|bench_one_batch_server"
    r"|lm_eval|genai-perf|guidellm)(\s|$)|sgl?[\w.]*\.bench_serving|vllm\s+bench"
)
"""Command lines of programs that load a model server."""

VERSIONS_PROGRAM = """
import json, sys
try:
    from importlib.metadata import distribution, PackageNotFoundError
except ImportError:
    from importlib_metadata import distribution, PackageNotFoundError
found = {}
for name in sys.argv[1:]:
    try:
        dist = distribution(name)
    except PackageNotFoundError:
        continue
    url = dist.read_text("direct_url.json")
    found[name] = {"version": dist.version, "direct_url": json.loads(url) if url else None}
print(json.dumps({"python": sys.version.split()[0], "packages": found}))
"""


HEADERS = {}  # type: dict[str, str]
"""What the endpoint wants to be told with each request: who asks."""


def fetch(host, port, path):
    """GET a path: (status, body, problem). Status None: no answer."""
    connection = http.client.HTTPConnection(host, port, timeout=HTTP_TIMEOUT_S)
    try:
        connection.request("GET", path, headers=HEADERS)
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20), ""
    except (OSError, http.client.HTTPException) as problem:
        return None, b"", "%s: %s" % (type(problem).__name__, problem)
    finally:
        connection.close()


def endpoint(host, port):
    """Health by status code alone, the served models, and what the engine says of itself."""
    status, _, problem = fetch(host, port, "/health")
    seen = {"health": status, "health_problem": problem, "models": [], "models_problem": ""}
    status, body, problem = fetch(host, port, "/v1/models")
    seen["models_status"] = status
    try:
        answer = json.loads(body.decode("utf-8")) if status == 200 else {}
        seen["models"] = [str(entry["id"]) for entry in answer.get("data") or [] if "id" in entry]
    except (ValueError, TypeError, AttributeError) as fault:
        problem = "/v1/models is no list of models: %s" % fault
    if not seen["models"]:
        seen["models_problem"] = problem or "status %s, no model listed" % status
    return seen


def engine_says(host, port):
    """Version and arguments from the engine's own pages; each engine has its own."""
    said = {}  # type: dict[str, object]
    for path in ("/get_server_info", "/server_info", "/version", "/props"):
        status, body, _ = fetch(host, port, path)
        if status != 200:
            continue
        try:
            answer = json.loads(body.decode("utf-8"))
        except ValueError:
            continue
        if isinstance(answer, dict):
            for key in ("version", "build_info", "model_path", "model_alias", "tp_size", "dtype"):
                if isinstance(answer.get(key), (str, int, float)):
                    said.setdefault(key, answer[key])
                    said.setdefault("page", path)
    return said


def listening_inodes(host, port):
    """Inodes of the sockets that listen on the port, and how many peers are connected to it."""
    inodes, peers = set(), 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:
            continue
        for row in rows:
            if int(row[1].rpartition(":")[2], 16) != port:
                continue
            if row[3] == "0A":
                inodes.add(row[9])
            elif row[3] == "01":
                peers += 1
    return inodes, peers


def processes():
    """The process ids of this host that can be seen."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def holders(inodes):
    """Processes that hold one of the sockets, as far as this user may look."""
    found = []
    for pid in processes():
        try:
            names = os.listdir("/proc/%d/fd" % pid)
        except OSError:
            continue
        for name in names:
            try:
                link = os.readlink("/proc/%d/fd/%s" % (pid, name))
            except OSError:
                continue
            if link.startswith("socket:[") and link[8:-1] in inodes:
                found.append(pid)
                break
    return found


def read(pid, name):
    """A file of /proc/<pid> as bytes; empty where it can't be read."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


def words(raw):
    """NUL-separated text as a list."""
    return [part.decode("utf-8", "backslashreplace") for part in raw.split(b"\0")[:-1]]


def started(pid):
    """(start in clock ticks since boot, start as seconds since 1970), or (None, None)."""
    stat = read(pid, "stat")
    try:
        ticks = int(stat.rpartition(b")")[2].split()[19])
        with open("/proc/stat") as lines:
            boot = next(int(line.split()[1]) for line in lines if line.startswith("btime"))
    except (IndexError, ValueError, OSError, StopIteration):
        return None, None
    return ticks, boot + ticks / os.sysconf("SC_CLK_TCK")


def describe(pid):
    """What one process is: user, command line, start, environment that matters."""
    ticks, since = started(pid)
    environ = dict(part.partition("=")[::2] for part in words(read(pid, "environ")))
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
        user = pwd.getpwuid(uid).pw_name
    except (OSError, KeyError):
        user = ""
    links = {}
    for name in ("exe", "cwd"):
        try:
            links[name] = os.readlink("/proc/%d/%s" % (pid, name))
        except OSError:
            links[name] = ""
    wanted = (
        "EXP_ID",
        "EXPERIMENT_ID",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PATH",
        "JAX_PLATFORMS",
        "TPU_ACCELERATOR_TYPE",
        "TPU_TOPOLOGY",
        "TPU_CHIPS_PER_HOST_BOUNDS",
        "CUDA_VISIBLE_DEVICES",
        "BENCHWRIGHT_JOB",
    )
    return {
        "pid": pid,
        "user": user,
        "args": words(read(pid, "cmdline")),
        "started_ticks": ticks,
        "started": since,
        "exe": links["exe"],
        "cwd": links["cwd"],
        "environ": {key: environ[key] for key in wanted if key in environ},
    }


def owner(host, port, problems):
    """The process that listens on the port: as this user, then with sudo, then by name."""
    inodes, _ = listening_inodes(host, port)
    found = holders(inodes) if inodes else []
    if found:
        # Forked workers share the listening socket; the one that started first made it.
        seen = sorted(
            (describe(pid) for pid in found), key=lambda p: (p["started_ticks"] or 0, p["pid"])
        )
        return dict(seen[0], found_by="user")
    if inodes and os.geteuid() != 0:
        answer = by_sudo(host, port)
        if answer is not None:
            return dict(answer, found_by="sudo")
        problems["owner"] = "the port's process belongs to another user, and sudo -n isn't allowed"
    elif not inodes:
        problems["owner"] = "no socket of this host listens on port %d" % port
    for pid in processes():
        args = words(read(pid, "cmdline"))
        text = " ".join(args)
        if re.search(r"(--port[= ]|:)%d(\D|$)" % port, text) and not EVALUATORS.search(text):
            if pid != os.getpid() and any(mark in text for mark, _ in ENGINES):
                return dict(describe(pid), found_by="name")
    return None


def by_sudo(host, port):
    """The same search as root, where sudo asks for no password."""
    if not shutil.which("sudo"):
        return None
    command = ["sudo", "-n", sys.executable, os.path.abspath(__file__), "--owner", host, str(port)]
    code, out, _ = command_output(command)
    try:
        return json.loads(out) if code == 0 else None
    except ValueError:
        return None


def command_output(command, cwd=None):
    """(exit code, stdout, stderr) of a command; code None where it can't start or hangs."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return None, "", str(problem)
    return (
        done.returncode,
        done.stdout.decode("utf-8", "backslashreplace"),
        done.stderr.decode("utf-8", "backslashreplace"),
    )


def interpreter(process):
    """The Python that the server runs in: the path it was called by, so that a venv stays one."""
    args, environ = process["args"], process["environ"]
    first = args[0] if args else ""
    if "python" in os.path.basename(first) or "pypy" in os.path.basename(first):
        if os.path.isabs(first):
            return first
        if "/" in first:
            return os.path.normpath(os.path.join(process["cwd"], first))
        found = shutil.which(first, path=environ.get("PATH") or None)
        if found:
            return found
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        candidate = os.path.join(environ.get(variable, ""), "bin", "python")
        if environ.get(variable) and os.access(candidate, os.X_OK):
            return candidate
    return process["exe"] if "python" in os.path.basename(process["exe"]) else ""


def versions(python, problems, user=""):
    """Versions of the packages in the environment of that Python.

    An environment that this user can't read is asked as the server's own user, where sudo asks for
    no password.
    """
    if not python:
        problems["versions"] = "the server's Python can't be told"
        return {}
    command = [python, "-c", VERSIONS_PROGRAM] + PACKAGES
    commands = [command]
    if user and user != getpass.getuser() and shutil.which("sudo"):
        commands.append(["sudo", "-n", "-u", user, "--"] + command)
    for each in commands:
        code, out, err = command_output(each, cwd="/")
        try:
            found = json.loads(out.splitlines()[-1])
        except (ValueError, IndexError):
            reason = (err.strip() or "exit code %s" % code)[-300:]
            problems.setdefault("versions", "%s: %s" % (python, reason))
            continue
        problems.pop("versions", None)
        return found
    return {}


def repository(path, problems):
    """Commit, branch and whether files are changed, of a working copy."""
    if not path:
        return {}
    base = ["git", "-c", "safe.directory=*", "-C", path]
    code, commit, err = command_output(base + ["rev-parse", "HEAD"])
    if code != 0:
        problems["repository"] = "%s: %s" % (path, err.strip()[-300:] or "no git")
        return {}
    _, branch, _ = command_output(base + ["rev-parse", "--abbrev-ref", "HEAD"])
    _, changed, _ = command_output(base + ["status", "--porcelain", "--untracked-files=no"])
    return {
        "path": path,
        "commit": commit.strip(),
        "branch": branch.strip(),
        "changed": bool(changed.strip()),
    }


def engine_of(process, said):
    """The engine's name: from the server's command line, then from the pages that it has."""
    text = " ".join(process["args"]).lower() if process else ""
    for mark, name in ENGINES:
        if mark in text:
            return name
    if "build_info" in said:
        return "llama.cpp"
    return {"/get_server_info": "sglang", "/version": "vllm"}.get(said.get("page"), "")


def checkout_of(found):
    """The working copy that an engine was installed from in place, where it was."""
    for entry in (found.get("packages") or {}).values():
        url = (entry.get("direct_url") or {}).get("url", "")
        if url.startswith("file://") and (
            (entry["direct_url"].get("dir_info") or {}).get("editable")
        ):
            return url[len("file://") :]
    return ""


def without_program_text(args):
    """A command line without what follows `-c`: a shell that will run an evaluator isn't one yet.

    The evaluator itself, once it runs, is a process of its own with its own words.
    """
    return [arg for before, arg in zip([""] + args, args) if before != "-c"]


def other_loads(host, port):
    """Programs on this host that evaluate or load the same endpoint."""
    me, found = os.getpid(), []
    for pid in processes():
        args = without_program_text(words(read(pid, "cmdline")))
        text = " ".join(args)
        if pid == me or not EVALUATORS.search(text):
            continue
        if re.search(r"[:=\s]%d(\D|$)" % port, text):
            process = describe(pid)
            found.append(
                {
                    "pid": pid,
                    "user": process["user"],
                    "args": args,
                    "started": process["started"],
                    "job": process["environ"].get("BENCHWRIGHT_JOB", ""),
                }
            )
    return found


GOOGLE_PCI_VENDOR = "0x1ae0"


def tpus(types, root="/"):
    """The type of each TPU chip of this host, by its PCI device.

    The device files tell less: `/dev/accel0` is other makers' name too, and later TPUs have
    `/dev/vfio/0`, as every device that a virtual machine was handed.
    """
    found = []
    for vendor in sorted(glob.glob(os.path.join(root, "sys/bus/pci/devices/*/vendor"))):
        try:
            with open(vendor) as file:
                ours = file.read().strip() == GOOGLE_PCI_VENDOR
            with open(os.path.join(os.path.dirname(vendor), "device")) as file:
                device = file.read().strip()
        except OSError:
            continue
        if ours and device in types:
            found.append(types[device])
    return found


def hardware(process, tpu_types, root="/"):
    """What this host computes on, by what can be read without asking anyone outside it."""
    environ = dict(os.environ, **(process["environ"] if process else {}))
    chips = tpus(tpu_types, root)
    # The whole slice, such as v6e-4, where the environment says it; else the chip's own type.
    named = environ.get("TPU_ACCELERATOR_TYPE") or (chips[0] if chips else "")
    seen = {
        "gpus": [],
        "tpu_type": named,
        "tpu_topology": environ.get("TPU_TOPOLOGY")
        or environ.get("TPU_CHIPS_PER_HOST_BOUNDS")
        or "",
        "tpu_chips": len(chips),
    }  # type: dict[str, object]
    if shutil.which("nvidia-smi"):
        code, out, _ = command_output(
            [
                "nvidia-smi",
                "--query-gpu=name,memory.total,driver_version,uuid",
                "--format=csv,noheader",
            ]
        )
        if code == 0:
            seen["gpus"] = [[part.strip() for part in line.split(",")] for line in out.splitlines()]
    try:
        with open("/proc/cpuinfo") as lines:
            seen["cpu"] = next(
                line.partition(":")[2].strip() for line in lines if line.startswith("model name")
            )
    except (OSError, StopIteration):
        seen["cpu"] = ""
    seen["cores"] = os.cpu_count()
    return seen


def boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def probe(request):
    """Everything, or with `light` only what tells whether the server is still the same."""
    host, port = request["host"], int(request["port"])
    if request.get("key"):
        HEADERS["Authorization"] = "Bearer " + request["key"]
    problems = {}  # type: dict[str, str]
    seen = {"time": time.time(), "endpoint": endpoint(host, port)}
    process = owner(host, port, problems)
    seen["process"] = process
    if not request.get("light"):
        found = versions(
            request.get("python") or (interpreter(process) if process else ""),
            problems,
            process["user"] if process else "",
        )
        seen["versions"] = found
        said = engine_says(host, port)
        seen["engine"] = engine_of(process, said)
        seen["engine_says"] = said
        seen["repository"] = repository(request.get("repository") or checkout_of(found), problems)
        seen["others"] = other_loads(host, port)
        seen["peers"] = listening_inodes(host, port)[1]
        seen["hardware"] = hardware(process, request.get("tpu_types") or {})
        seen["machine"] = {
            "name": socket.gethostname(),
            "user": getpass.getuser(),
            "kernel": os.uname().release,
            "boot_id": boot_id(),
        }
    if process:
        process["environ"].pop("PATH", None)
    seen["problems"] = problems
    return seen


def main():
    if sys.argv[1] == "--owner":
        host, port = sys.argv[2], int(sys.argv[3])
        inodes, _ = listening_inodes(host, port)
        found = holders(inodes)
        if not found:
            sys.exit(1)
        seen = sorted(
            (describe(pid) for pid in found), key=lambda p: (p["started_ticks"] or 0, p["pid"])
        )
        print(json.dumps(seen[0]))
        return
    with open(sys.argv[1]) as file:
        request = json.load(file)
    print(json.dumps(probe(request)))


if __name__ == "__main__":
    main()
