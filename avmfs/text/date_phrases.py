"""Days as German, French, Spanish, Russian, Arabic, Japanese and Korean name them, put into the words that ``dates``
reads.

Owns the phrases, a closed class of each language. What may as well mean something else is left out: *morgen*, *mañana*
and اليوم are morning and day too. Called by ``dates``. Takes any str and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from avmfs.text import function_words
from avmfs.text.segment import terms

WHEN: Final = re.compile(
    r"^\W*(?:(?:seit|ab|bis|depuis|desde|с|до)\s+)?(?:wann|quand|cuándo|когда)\b|متى|いつ(?!も)|언제|몇\s?[월일]",
    re.IGNORECASE,
)
"""What asks for a time."""

ANYTHING: Final = frozenset(
    terms(
        "schreiben schrieb geschrieben notiert notiz notizen eintrag passiert geschehen gemacht erledigt neues "
        "geändert écrit noté note notes passé fait nouveau changé modifié escrito escribí escribimos anoté "
        "anotado nota notas pasó hecho hice hicimos nuevo cambió cambiado писал писала написал написала записал "
        "записала запись записи заметки было произошло случилось сделал сделано нового изменилось كتبت كتبنا "
        "ملاحظة ملاحظات حدث جديد تغير 写 写了 写过 我写 我记 记 记了 记录 笔记 发生 做 做了 更新 "
        "書い 書き きま 記録 メモ 起き きた 썼지 썼어 썼나 썼는 일이 적었 "
        "기록 메모"
    )
)
"""Of a question that names days and no matter, what asks for all that there is of them, in the other languages and in
Chinese."""

_RELATIVE: Final = (  # last, this, next; week, month, year: in either order
    (
        "(?:letzt|vorig|vergangen)e[nmrs]?",
        "diese[nmrs]?",
        "(?:nächst|kommend)e[nmrs]?",
        "woche",
        "monats?",
        "jahr(?:es)?",
    ),
    ("(?:derni[eè]re?|passée?)", "ce(?:t|tte)?", "prochaine?", "semaine", "mois(?:-ci)?", "an(?:née)?"),
    ("(?:pasad|últim)[oa]", "est[ea]", "(?:próxim[oa]|que viene)", "semana", "mes", "año"),
    (
        "прошл(?:ая|ой|ую|ый|ом|ого)",
        "эт(?:а|ой|у|от|ом|ого)",
        "следующ(?:ая|ей|ую|ий|ем|его)",
        "недел[яеюи]",
        "месяц[еа]?",
        "год[уа]?",
    ),
    ("(?:الماضية?|الفائتة?)", "هذ[اه]", "(?:القادمة?|المقبلة?)", "الأسبوع", "الشهر", "(?:العام|السنة)"),
)
_MONTHS: Final = {
    "january": "januar|janvier|enero|январ[ьяе]|يناير", "february": "februar|février|febrero|феврал[ьяе]|فبراير",
    "march": "märz|(?-i:mars)|marzo|март[ае]?|مارس", "april": "april|avril|abril|апрел[ьяе]|أبريل",
    "may": "mai|mayo|ма[йяе]|مايو", "june": "juni|juin|junio|июн[ьяе]|يونيو",
    "july": "juli|juillet|julio|июл[ьяе]|يوليو", "august": "august|août|agosto|август[ае]?|أغسطس",
    "september": "september|septembre|septiembre|сентябр[ьяе]|سبتمبر",
    "october": "oktober|octobre|octubre|октябр[ьяе]|أكتوبر",
    "november": "november|novembre|noviembre|ноябр[ьяе]|نوفمبر",
    "december": "dezember|décembre|diciembre|декабр[ьяе]|ديسمبر",
}  # fmt: skip
_WORDS: Final = {
    "the day before yesterday": "vorgestern|avant-hier|anteayer|antier|позавчера|أول أمس",
    "yesterday": "gestern|hier|ayer|вчера|أمس",
    "today": "heute|aujourd['’]hui|hoy|сегодня",
    "tomorrow": "demain|завтра|غدا",
    "one week ago": "قبل أسبوع",
    "two weeks ago": "قبل أسبوعين",
    **{
        f"{which} {unit}": "|".join(f"{row[at]} {row[3 + of]}|{row[3 + of]} {row[at]}" for row in _RELATIVE)
        for at, which in enumerate(("last", "this", "next"))
        for of, unit in enumerate(("week", "month", "year"))
    },
}
_COUNTS: Final = (
    "ein(?:em|er)?|une?|una?|одн[оу]",
    "zwei|deux|dos|дв[ае]",
    "drei|trois|tres|три|ثلاثة",
    "vier|quatre|cuatro|четыре|أربعة",
    "fünf|cinq|cinco|пять|خمسة",
    "sechs|six|seis|шесть|ستة",
)
_UNITS: Final = {
    "day": "tag(?:en)?|jours?|días?|день|дня|дней|أيام|يوما?",
    "week": "wochen?|semaines?|semanas?|недел[юиь]|أسبوع|أسابيع",
    "month": "monat(?:en)?|mois|mes(?:es)?|месяц(?:а|ев)?|شهر|أشهر",
    "year": "jahr(?:en)?|ans?|années?|años?|год|года|лет|سنة|سنوات|عام|أعوام",
}
_COUNT: Final = r"\d{1,3}|" + "|".join(f"(?P<n{at}>{words})" for at, words in enumerate(_COUNTS, 1))


def _either(words: dict[str, str]) -> str:
    return "|".join(f"(?P<{name}>{pattern})" for name, pattern in words.items())


def _pattern(text: str) -> re.Pattern[str]:
    """A blank stands for any white space."""
    return re.compile(rf"(?<!\w)(?=\w){text}(?!\w)".replace(" ", r"\s+"), re.IGNORECASE)


_PHRASE: Final = {name.replace(" ", "_"): words for name, words in _WORDS.items()}
_LEAD: Final = (
    r"(?:(?:(?P<since>seit|ab|depuis|desde|со?|منذ)|(?P<before>vor|avant|antes del?|до|قبل)|"
    r"(?P<in>im|am|vom|bis|ende|anfang|mitte|en|de|fin|début|в|за|في|خلال)) |d['’])?"
)
_AGO: Final = _pattern(
    r"(?P<since>(?:seit|depuis|desde hace) )?(?P<lead>(?:vor|il y a|hace|قبل|منذ) )?"
    rf"(?:(?P<n>{_COUNT}) )?(?:{_either(_UNITS)})(?P<back> назад)?"
)
_ARTICLE: Final = r"(?:(?:la|le|el|der|dem|den) |l['’])?"
_NAMED: Final = _pattern(rf"{_LEAD}{_ARTICLE}(?:{_either(_PHRASE)})")
_MONTH: Final = _pattern(
    rf"(?P<lead>{_LEAD}{_ARTICLE})(?:(?:mois de|شهر) )?(?:(?P<day>\d{{1,2}})(?:\.|er|º)? (?:de )?)?"
    rf"(?:{_either(_MONTHS)})"
    r"(?:(?: del?)? (?P<year>(?:19|20)\d\d))?"
)
_NO_WORD: Final = "(?<![\u3400-\u9fff])"  # 本来年轻, 后来月报
# Japanese and Korean as Chinese says it, which goes with what follows (작년 5월).
_ASIAN: Final = tuple(
    (re.compile(pattern), chinese)
    for pattern, chinese in (
        ("先々週", "上上周"), ("先週|지난 ?주", "上周"), ("今週|이번 ?주", "本周"), ("来週|다음 ?주", "下周"),
        ("先月|지난 ?달", "上月"), ("今月|이번 ?달", "本月"), (f"{_NO_WORD}来月|다음 ?달", "下月"),
        ("昨年|작년 ?", "去年"), ("올해 ?", "今年"), (f"{_NO_WORD}来年|내년 ?", "明年"),
        ("一昨日|그저께|그제", "前天"), ("어제", "昨天"), ("오늘", "今天"), ("明日|내일", "明天"),
        ("일주일 ?전", "1周前"), (r"(\d{1,3}|[한두세네]) ?(?:週間前|주 ?전)", r"\1周前"),
        (r"(\d{1,3}) ?일 ?전", r"\1天前"), (r"(\d{1,3}) ?년 ?전", r"\1年前"),
        (r"(\d{1,3}|[한두세네]) ?(?:[かヶケヵ箇]月前|(?:달|개월) ?전)", r"\1个月前"),
        (r"((?:19|20)\d\d) ?년 ?", r"\1年"), (r"(?<!\d)(1[0-2]|[1-9])월 ?([12]?\d|3[01])일", r"\1月\2日"),
        (r"(?<!\d)(1[0-2]|[1-9])월", r"\1月"),
    )
)  # fmt: skip
_KOREAN: Final = str.maketrans("한두세네", "一两三四")


def readable(question: str) -> tuple[str, str]:
    """``question`` with its phrases in English or Chinese, and those phrases as they stood, with blanks between."""
    had: list[str] = []

    def put(hit: re.Match[str], words: str) -> str:
        if words:
            had.append(hit[0])
        return words or hit[0]

    # "2 Mars missions" is no day of March.
    if not function_words.TELLS_ENGLISH.search(question):
        question = _AGO.sub(lambda hit: put(hit, _ago(hit)), question)
        question = _MONTH.sub(lambda hit: put(hit, _month(hit)), question)
        question = _NAMED.sub(lambda hit: put(hit, _named(hit)), question)
    for pattern, chinese in () if question.isascii() else _ASIAN:
        question = pattern.sub(partial(_expanded, put, chinese), question)
    return question, " ".join(had)


def _expanded(put: Callable[[re.Match[str], str], str], chinese: str, hit: re.Match[str]) -> str:
    return put(hit, hit.expand(chinese).translate(_KOREAN))


def _ago(hit: re.Match[str]) -> str:
    count = hit["n"] or ("1" if hit["back"] else "")
    if not count or not (hit["lead"] or hit["back"] or hit["since"]):
        return ""
    count = next((str(at) for at in range(1, len(_COUNTS) + 1) if hit[f"n{at}"]), count)
    return f"{'in the last ' * bool(hit['since'])}{count} {_said(hit, _UNITS)}s{'' if hit['since'] else ' ago'}"


def _month(hit: re.Match[str]) -> str:
    month, lead = _said(hit, _MONTHS), _said(hit, ("since", "before"))
    if not (hit["day"] or hit["lead"] or hit["year"]):
        return ""
    return f"{lead or ('' if hit['day'] or hit['year'] else 'in')} {hit['day'] or ''} {month} {hit['year'] or ''}"


def _named(hit: re.Match[str]) -> str:
    if hit[0].casefold() == "hier" and "hier" in function_words.spoken(hit.string):
        return ""  # German: here
    return f"{_said(hit, ('since', 'before'))} {_said(hit, _PHRASE).replace('_', ' ')}"


def _said(hit: re.Match[str], names: Iterable[str]) -> str:
    return next((name for name in names if hit[name]), "")
