"""Templates: what is replaced, what stays, what is refused, and that bash hands values over."""

from __future__ import annotations

import random
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchwright.errors import BadInput, Where
from benchwright.spec.template import Context, parse

HOSTILE = [
    "it's",
    "#",
    "a # b",
    "100%s %d",
    "a|b",
    "{v}",
    "{print $2}",
    '{"a": 1}',
    "$(touch /tmp/x)",
    "$(id -u)",
    "`id`",
    "a\nb",
    "a\n",
    "\n",
    "naïve ☃ 𝄞",
    "",
    " ",
    "-rf",
    "-a",
    "-5",
    "--help",
    "\\",
    "\\\\",
    "a\\",
    "\\n",
    '"',
    "''",
    "$HOME",
    "${HOME}",
    "*",
    "~",
    "!x",
    "a;b",
    "a&b",
    "<x>",
    "EOF",
    "\t",
    "if",
    "time",
    "1",
    "a=b",
    "x,y",
    "a..c",
    "$",
    "\r\n",
    "\x7f\x01",
    "\\'",
    '\\"',
    "\\`",
    "\\$x",
    "'\"'\"'",
    ")",
    "esac",
    "0123456789" * 50,
]

CONTEXTS = {
    "a word": "p {v}",
    "a word with text before it": "p x{v}",
    "after an equals sign": "p --out={v}",
    "two side by side": "p {v}{v}",
    "an assignment": 'Y={v}; p "$Y"',
    "before a redirection": "p {v}>&3",
    "single quotes": "p '{v}'",
    "single quotes with text": "p 'a {v} b'",
    "double quotes": 'p "{v}"',
    "double quotes with text": 'p "a $X {v} b"',
    "double quotes after an escaped quote": 'p "\\"{v}\\""',
    "ANSI-C quotes": "p $'{v}\\t'",
    "locale quotes": 'p $"{v}"',
    "a substitution": ": $(p {v})",
    "a substitution in double quotes": ': "$(p {v})"',
    "double quotes in a substitution in double quotes": ': "x $(p "{v}") y"',
    "single quotes in a substitution in double quotes": ": \"$(p '{v}')\"",
    "after a substitution with a case": ': "$(case b in a) ;; (b) p {v};; *) ;; esac)"; p "{v}"',
    "backticks": ": `p {v}`",
    "single quotes in backticks": ": `p '{v}'`",
    "double quotes in backticks": ': `p "{v}"`',
    "backticks in double quotes": ': "`p {v}`"',
    "single quotes in backticks in double quotes": ": \"`p '{v}'`\"",
    "backticks in a substitution in double quotes": ': "$(p `p "{v}" {v}`)"',
    "after a comment": 'p 1 # it\'s "not closed" {v}\np {v}',
    "after a hash in a word": "p a#{v}",
    "after a here-document": "cat <<'E' >/dev/null\nit's \"\nE\np {v}",
    "after two here-documents": "cat <<A <<-B >/dev/null\n' {print}\nA\n\t\"\n\tB\np '{v}'",
    "after a here-document in a substitution": ': "$(cat <<E\n)"\nE\n)"; p "{v}"',
    "after a here-string": "cat <<<{v} >/dev/null; p {v}",
    "after expansions": "p \"${X:-a b}\" ${#X} $# '$'{v}",
    "after arithmetic": 'p $((1 << 2)) {v}; ((1)); p "$(( (1+2) * 3 ))" "{v}"',
    "after an escaped quote": "p \\\" {v} \\'",
    "process substitution": "cat <(p {v})",
    "a subshell": "(p {v}; (p '{v}'))",
    "a list": "p a && { p {v}; }",
    "an array": 'A=({v} b); p "${A[0]}"',
    "the other side of a test": "[[ {v} == {v} ]] && p same",
    "a loop": 'for x in {v} "{v}"; do p "$x"; done',
    "a continued line": "p a \\\n  {v}",
}


def arguments(script: str) -> list[str]:
    """What each call of `p` received, in order."""
    preamble = "exec 3>&1 4>/dev/null; p() { printf '%s\\0' \"$@\" >&3; }; X=x\n"
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", preamble + script],
        capture_output=True,
        check=False,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "HOME": "/"},
        cwd="/",
    )
    assert done.returncode == 0, (script, done.stderr)
    return done.stdout.decode().split("\0")[:-1]


def expected(template: str, value: str) -> list[str]:
    """The arguments for a harmless value, with the real one in its place."""
    return [arg.replace("MARK", value) for arg in arguments(parse(template).render({"v": "MARK"}))]


@pytest.fixture(scope="module")
def harmless() -> dict[str, list[str]]:
    return {label: expected(template, "MARK") for label, template in CONTEXTS.items()}


def test_every_context_hands_something_over(harmless: dict[str, list[str]]) -> None:
    assert all(
        any("MARK" in arg for arg in args) or label == "the other side of a test"
        for label, args in harmless.items()
    )


def check_arrival(value: str, harmless: dict[str, list[str]]) -> None:
    """One bash for all contexts: between two of them stands a line of its own."""
    script, wanted = "", []
    for label, template in CONTEXTS.items():
        script += f"p ---\n{parse(template).render({'v': value})}\n"
        wanted += ["---", *(arg.replace("MARK", value) for arg in harmless[label])]
    assert arguments(script) == wanted


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_arrives_byte_for_byte(value: str, harmless: dict[str, list[str]]) -> None:
    check_arrival(value, harmless)


@settings(max_examples=150, deadline=None)
@given(
    value=st.one_of(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40),
        st.text("'\"\\$`(){}#|&;<>!*?~%= \n\tab-1", max_size=20),
    )
)
def test_any_value_arrives_byte_for_byte(value: str, harmless: dict[str, list[str]]) -> None:
    check_arrival(value, harmless)


class CommandMaker:
    """Random commands of nested quoting, each level of which bash reads differently."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def word(self, depth: int) -> str:
        plain = ["{v}", "'a {v} b'", '"x {v} $X"', "$'q{v}\\''", "a#b", '\\"', "${X:-def}"]
        plain += ['"${X:-d e}"', "$((1+(2*3)))"]
        nested = ['"$(%s)"', "$(%s)", '`p "{v}" {v}`', "\"`p '{v}' {v}`\""]
        choice = self.random.choice(plain + (nested if depth else []))
        return choice.replace("%s", self.command(depth - 1)) if "%s" in choice else choice

    def command(self, depth: int) -> str:
        inner = [
            "(%s; %s)",
            "{ %s; }",
            "case a in (b) %s;; a) %s;; *) p z;; esac",
            "if true; then %s; fi",
            "cat <<'E' >&4\nit's \" ` $( {zz q}\nE\n%s",
            "p 1 # it's \" `\n%s",
            "for i in 1 2; do %s\ndone",
        ]
        if depth > 0 and self.random.random() < 0.6:
            parts = self.random.choice(inner).split("%s")
            return "".join(p + self.command(depth - 1) for p in parts[:-1]) + parts[-1]
        words = [self.word(max(depth, 0)) for _ in range(self.random.randrange(1, 4))]
        return self.random.choice(["p ", 'Y={v}; p "$Y" ']) + " ".join(words)


def test_values_arrive_in_any_nesting_that_bash_accepts() -> None:
    tried = 0
    for seed in range(120):
        template = CommandMaker(seed).command(3)
        try:
            harmless = expected(template, "MARK")
        except BadInput:
            continue  # `((` that might be arithmetic or a subshell: refused rather than guessed
        value = HOSTILE[seed % len(HOSTILE)]
        got = arguments(parse(template).render({"v": value}))
        assert got == [arg.replace("MARK", value) for arg in harmless], template
        tried += 1
    assert tried > 80


# --- what is replaced, what stays ---------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "awk '{print $2}'",
        "awk '{print}'",
        'echo \'{"a": 1, "b": {"c": []}}\'',
        "echo ${HOME} \"${HOME}\" '${HOME}' ${n}",
        "echo {a,b} {1..5} {a..z} {01..10..3}",
        "find . -exec rm {} \\;",
        "grep -E 'a{3}' 'b{2,}'",
        "docker ps --format '{{.Names}}'",
        "{ echo a; }",
        "exec {fd}>out; echo >&$fd",
        'echo \\{n} "\\{n}"',
        "python -c 'print(f\"{x!r} {np.mean(y)} {a[0]}\")'",
        "echo a # the {count} of {n} and {n!raw} isn't used here",
        "python3 - <<'E'\nprint(f'{args.output}')\nE",
        "echo ${x:-{}}",
        "curl 'http://host/{id}' \"{seed}\"",
    ],
)
def test_other_braces_stay_as_they_are(text: str) -> None:
    assert parse(text).render({"n": "1", "corpus.size": "2"}) == text


def test_a_value_is_not_looked_at_again() -> None:
    assert parse("p '{a}{b}'").render({"a": "{b}", "b": "{a}"}) == "p '{b}{a}'"


def test_a_raw_value_is_put_in_as_it_is() -> None:
    assert parse("run {flags!raw} {n}").render({"flags": "-x 'y z'", "n": "3"}) == "run -x 'y z' 3"


def test_harmless_values_stay_readable() -> None:
    text = "./b.sh --docs {n} --out {out} --eq={n} {1..{n}}"
    assert (
        parse(text).render({"n": "20", "out": "/tmp/x-1/index"})
        == "./b.sh --docs 20 --out /tmp/x-1/index --eq=20 {1..20}"
    )


def test_names_know_their_context() -> None:
    text = "a {x} '{y}' \"{z!raw} $(b {x})\"\n# {c}\ncat <<E\n{h}\nE\necho $(( {i} + 1 ))"
    assert [(n.name, n.raw, n.context, n.line) for n in parse(text).names] == [
        ("x", False, Context.OUTSIDE, 1),
        ("y", False, Context.SINGLE, 1),
        ("z", True, Context.DOUBLE, 1),
        ("x", False, Context.OUTSIDE, 1),
        ("h", False, Context.HERE_DOCUMENT, 4),
        ("i", False, Context.ARITHMETIC, 6),
    ]


def test_names_may_have_dots_dashes_and_at_signs() -> None:
    values = {"recall@10": "1", "a-b.c_d": "2", "12:30": "3", "größe": "4"}
    text = " ".join(f"{{{name}}}" for name in values)
    assert parse(text).render(values) == "1 2 3 4"


def test_a_whole_number_may_stand_in_arithmetic() -> None:
    assert arguments(parse("p $(( {n} * 2 ))").render({"n": "-4"})) == ["-8"]


def test_plain_text_is_filled_in_without_quotes() -> None:
    template = parse('{dir}/a b/{dir!raw}/${dir}/{"x": 1}/{other}', shell=False)
    assert template.render({"dir": "it's"}) == "it's/a b/it's/${dir}/{\"x\": 1}/{other}"


# --- what is refused ----------------------------------------------------------------------------

DECLARED = {"corpus.n_docs": "1", "n_queries": "2", "index": "/i", "run.seed": "3"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x {corpus.n_doc}", "did you mean `{corpus.n_docs}`?"),
        ("x '{corpus.n_doc}'", "did you mean `{corpus.n_docs}`?"),
        ("x {n_docs}", "did you mean `{corpus.n_docs}`?"),
        ('x "{n_docs}"', "did you mean `{corpus.n_docs}`?"),
        ("x '{n_query}'", "did you mean `{n_queries}`?"),
        ("x {elephant}", "declare it under `params:`"),
        ("x '{some.thing}'", "{''some.thing}"),
        ('x "{thing!raw}"', "no declared name"),
        ("x {run.sed}", "did you mean `{run.seed}`?"),
        ("x ${corpus.n_docs}", "without the $"),
        ("cat <<E\n{n_queries}\nE", "params: [n_queries]` and use $N_QUERIES"),
        ("cat <<E\n{n_querys}\nE", "did you mean `{n_queries}`?"),
        ("x ${y:-{n_queries}}", "a ${...} expansion"),
        ("x 'open {n_queries}", "'...' is opened and not closed"),
        ('x {n_queries} "', "is opened and not closed"),
        ("x `a \\`b\\` {n_queries}`", "a backslash inside backticks"),
        ('x "`y "{n_queries}"`"', "$(...) is clearer"),
        ("x \"${y#'}'} {n_queries}\"", 'quotes in a ${...} inside "..."'),
        ("x $(( {index} + 1 ))", "a whole number"),
        ("x $[ {n_queries} + 1 ]", "write $((...))"),
        ('cat <<E "\n{n_queries}\nE\n"', "begins inside quotes"),
    ],
)
def test_a_template_that_cannot_be_meant_so_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(text).render(DECLARED, where=Where("b.yaml", 7, "stages.build.cmd"))
    assert str(caught.value).startswith("b.yaml:7: stages.build.cmd: ")
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("text", ["x '{''some.thing}'", 'x "{""some.thing}"', "x \\{some.thing}"])
def test_the_advised_ways_to_keep_braces_work(text: str) -> None:
    assert arguments(parse(text.replace("x", "p", 1)).render(DECLARED)) == ["{some.thing}"]


def test_raw_is_allowed_where_a_value_cannot_be_quoted() -> None:
    assert parse("cat <<E\n{n_queries!raw}\nE").render(DECLARED) == "cat <<E\n2\nE"
