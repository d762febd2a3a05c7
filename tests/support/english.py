"""Plain English: constructions that texts avoid, and the length of their sentences."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

WORDS_MAX = 30
"""The length of a sentence."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A construction that is avoided: what to write ``instead``, and an ``example`` of it."""

    name: str
    expression: re.Pattern[str]
    instead: str
    example: str


def _pattern(name: str, expression: str, instead: str, example: str) -> Pattern:
    return Pattern(name, re.compile(expression, re.MULTILINE), instead, example)


PATTERNS: tuple[Pattern, ...] = (
    _pattern("let go", r"\b[Ll]et(s|ting)? go\b", "release, delete", "Chunks are let go of."),
    _pattern(
        "have back",
        r"\b(be|been|being|is|are|was|were) had back\b"
        r"|\b([Hh]ave|has|had|having) (it|them|files|FILES|what [a-z]+ theirs|everything)? ?back\b",
        "restore",
        "Files can be had back.",
    ),
    _pattern(
        "told",
        r"\b(is|are|was|were|be|been|being|not|each is) told\b|\b[Tt]ells? (of|apart)\b"
        r"|\btold (of|apart|from|by)\b",
        "notify, report, distinguish",
        "An administrator is told of it.",
    ),
    _pattern(
        "go on",
        r"\b[Gg]o(es|ing)? on\b|\b(went|gone) on\b",
        "continue, resume",
        "The next run goes on there.",
    ),
    _pattern("begun", r"\b[Bb]egun\b", "started", "The job has begun."),
    _pattern(
        "left alone",
        r"\b([Ll]eft|[Ll]eaves?|leaving) ([a-z]+ )?(alone|as (it|they) (is|are|was|were))\b"
        r"|\bstays? as (it|they) (is|are|was|were)\b|\bcounts? as (it|they) (is|are|was|were)\b",
        "skip, keep",
        "Small files are left alone.",
    ),
    _pattern(
        "in place of",
        r"\bin (the )?place of\b",
        "instead of, replaces",
        "It uses a copy in place of the record.",
    ),
    _pattern("beside", r"\b[Bb]eside\b", "next to, alongside", "It lies beside the volume."),
    _pattern(
        "old adverbs",
        r"\bmeanwhile\b|\b[Ll]ately\b|\bof late\b|\banew\b|\bbeforehand\b|\b[Hh]ence\b"
        r"|\breckon(s|ed|ing)?\b",
        "while it runs, recently, again, estimate",
        "Users work meanwhile.",
    ),
    _pattern(
        "as a whole",
        r"\bas a whole\b|\bin vain\b|\ball the same\b|\bnevertheless\b",
        "entire, unnecessarily, still",
        "The file is read as a whole.",
    ),
    _pattern(
        "also where",
        r"\b[Aa]lso (where|if|when|after|while|by|of|for|from|with|without|through)\b",
        "even if, including",
        "It works also where the service runs.",
    ),
    _pattern(
        "is there",
        r"\b(is|are|was|were) (not )?there\b",
        "exists, is present",
        "The file is there already.",
    ),
    _pattern(
        "is over",
        r"\b(is|are|was|were|be) "
        r"(over|gone|away|here|at work|at rest|under way|on (its|the) way|at it)\b",
        "finished, expired, missing, running",
        "The alarm is over.",
    ),
    _pattern(
        "pass over",
        r"\b[Pp]ass(es|ed|ing)? over\b|\b(held|holds?|holding) [a-z' ]{0,12}(up|against)\b"
        r"|\bput(s|ting)? off\b",
        "skip, delay, compare, postpone",
        "Small files are passed over.",
    ),
    _pattern(
        "give back",
        r"\b[Gg](ive|ives|ave|iven|iving) (up|way|back)\b"
        r"|\b[Gg]iv(e|es|en|ing) [a-z' ]{0,30}\bback\b|\bfill(s|ed|ing)? up\b",
        "free, yield, expand",
        "Compaction gives space back.",
    ),
    _pattern(
        "look at",
        r"\b[Ll]ook(s|ed|ing)? (at|after)\b"
        r"|\b(a|another|second|each|one|further|two) looks?\b(?!-up)",
        "check, read, manage",
        "It looks at each file.",
    ),
    _pattern(
        "say what",
        r"\b([Ss]ay|[Ss]ays|said) (so|what|why|how|which|whether|by what|where)\b",
        "report, print",
        "The report says why.",
    ),
    _pattern(
        "one that",
        r"\b([Oo]nes?|[Aa]ll|nobody|somebody|everybody|anybody) (that|which|who)\b",
        "the noun itself",
        "One that is damaged is skipped.",
    ),
    _pattern(
        "Of a",
        r"(^|[.:;] |\*\* )"
        r"Of (an?|the|all|each|what|which|files|those|these|this"
        r"|such|one|stubs|several|both|any|two)\b",
        "subject, verb, object",
        "Of each file it shows the size.",
    ),
    _pattern(
        "What as a subject",
        r"(^|[.] )(What|Who|Whoever|Whatever) (?![^.?]*\?)[a-z]",
        "a noun",
        "What nothing needs is deleted.",
    ),
    _pattern(
        "Where as a condition",
        r"(^|[.(] ?)Where (?!to\b)[a-z][^?|]{3,}?,"
        r"|,? where (it|nothing|nobody|anything|none|no|one|there) ",
        "if, when",
        "Where the service runs, it runs the job.",
    ),
    _pattern(
        "by which",
        r"\b(by|of|before|after|because of) (which|whom)\b",
        "a sentence of its own",
        "The key by which a chunk is found.",
    ),
    _pattern(
        "nobody",
        r"\b([Nn]obody|[Ss]omebody|[Ee]verybody|[Ww]hoever)\b",
        "the actor: a user, the administrator, a program",
        "Nobody can read it.",
    ),
    _pattern(
        "any more",
        r"\bany more\b|\bfor good\b|\bbut for\b|\bnothing but\b|\b(comes?|came|becomes?) of\b"
        r"|\bcomes? to be\b",
        "no longer, permanently, only",
        "It does not exist any more.",
    ),
    _pattern(
        "like 2h",
        r"\blike (\d|[\"'`]|exclude_types)|\bso (many|much|long|few)\b"
        r"|\b(bytes|requests|operations|µs|ms|keys|MB|GB|KB|KiB) an? "
        r"(chunk|file|entry|second|record|volume|OSD|request|day|core|page|stub|node)\b"
        r"|\b(is|are|gets?|was) short\b",
        "for example, per, low",
        "Stop after so long, like 2h.",
    ),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A construction to avoid, or a long sentence, in the text at ``where``."""

    where: str
    name: str
    words: str
    instead: str

    def __str__(self) -> str:
        return f"{self.where}: {self.name}: {self.words!r}; write: {self.instead}"


def faults(text: str, where: str) -> Iterator[Fault]:
    """Find faults in ``text``, whose paragraphs may be wrapped."""
    for paragraph in paragraphs(text):
        for pattern in PATTERNS:
            for found in pattern.expression.finditer(paragraph):
                around = paragraph[max(0, found.start() - 30) : found.end() + 30]
                yield Fault(where, pattern.name, around, pattern.instead)
        for sentence in sentences(paragraph):
            count = len(sentence.split())
            if count > WORDS_MAX:
                yield Fault(where, "long sentence", sentence, f"{WORDS_MAX} words, not {count}")


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs and list items of a text, each in one line; code is replaced by a word."""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        line = " ".join(block.replace("\b", "").split())
        line = re.sub(r"^([-*]|\d+\.) ", "", line)
        if line:
            yield re.sub(r"(`+)[^`]+\1", "`x`", line)


def sentences(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph. A semicolon does not end one."""
    yield from re.split(r"(?<=[.?!])[)\"']?\s+(?=[A-Z0-9(`])", paragraph)
