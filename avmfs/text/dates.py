"""Dates and times that people name: in a question, as the days they mean; in a text, whether there are any.

Owns the grammar, English and Chinese; ``date_phrases`` puts other languages into these. Called by search (``named``,
``asks_when``) and by the store's indexer (``tells_time``). Knows days of the calendar only; time zones and notes are
the caller's. ``today`` is an argument. Everything takes any str, never raises and is linear in its length; of a long
one the beginning counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from avmfs.text import date_phrases

READ: Final = 2000
"""Characters of a question or text that are looked at."""

MOST: Final = 8
"""Dates taken from one question."""

_MONTHS: Final = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
]  # fmt: skip
_DAYS: Final = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_NUMBERS: Final = {
    "a": 1, "an": 1, "one": 1, "two": 2, "couple of": 2, "three": 3, "few": 3, "four": 4, "five": 5, "six": 6,
    "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
}  # fmt: skip
_HAN: Final = {sign: "零一二三四五六七八九十".index(sign) for sign in "零一二三四五六七八九十"} | {"两": 2}

_MONTH: Final = "|".join(f"{name[:3]}(?:{name[3:]})?" if len(name) > 3 else name for name in _MONTHS) + "|sept"
_YEAR: Final = r"(?:19|20)\d\d"
_DAY: Final = r"(?:0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?"
_COUNT: Final = r"\d{1,3}|" + "|".join(sorted(_NUMBERS, key=len, reverse=True)).replace(" ", r"\s+")
_ONES: Final = "[一二两三四五六七八九]"
_HAN_COUNT: Final = (
    rf"(?<![〇零一二两三四五六七八九十百千万\d])(?:\d{{1,3}}|{_ONES}{{,2}}十{_ONES}{{,2}}|{_ONES}{{1,2}})"
)
_UNIT: Final = "day|week|fortnight|month|year"
_DOTTED: Final = str.maketrans("İı", "ii")  # where case is ignored, `re` takes them for an i; casefold() does not

# Alternatives in order: what is more exact comes first, and what it has taken is not read again.
_NAMED: Final = re.compile(
    rf"""
    (?-i:(?<![A-Z]-))\b(?P<iso>(?P<iy>{_YEAR})[-/.](?P<im>0?[1-9]|1[0-2])(?:[-/.](?P<id>0?[1-9]|[12]\d|3[01]))?)(?!\d)
  | \b(?P<dm>(?P<dm_d>{_DAY})\s+(?:of\s+)?(?P<dm_m>{_MONTH})\b\.?(?:,?\s*(?P<dm_y>{_YEAR})\b)?)
  | \b(?P<md>(?P<md_m>{_MONTH})\b\.?\s+(?:the\s+)?(?P<md_d>{_DAY})\b(?!:)(?:\s*,?\s*(?P<md_y>{_YEAR})\b)?)
  | \b(?P<my>(?P<my_m>{_MONTH})\b\.?,?\s+(?:of\s+)?(?P<my_y>{_YEAR})\b)
  | \b(?P<m>(?P<m_before>in|of|during|since|until|till|by|last|this|next|early|mid|late|before|after|from)[\s-]+
        (?P<m_m>{_MONTH})\b(?!\.?,?\s*(?:the\s+)?\d))
  | \b(?P<ago>(?P<ago_n>{_COUNT})\s+(?P<ago_u>{_UNIT})s?\s+ago)\b
  | \b(?P<past>(?:(?:in|over|during|within|for)\s+)?(?:the\s+)?(?:last|past|previous)\s+(?P<past_n>{_COUNT})\s+
        (?P<past_u>{_UNIT})s?)\b
  | \b(?P<rel>(?P<rel_w>last|past|previous|this|next)\s+(?P<rel_u>{_UNIT}|weekend|night|{"|".join(_DAYS)}))\b
  | \b(?P<word>the\s+day\s+before\s+yesterday|yesterday|today|tonight|tomorrow)\b
  | \b(?P<wd>(?:on\s+|(?<=since\s)|(?<=after\s))(?P<wd_d>{"|".join(_DAYS)}))\b
  | (?:(?<![-\w])|(?<=mid-)|(?<=pre-)|(?<=late-)|(?<=post-)|(?<=early-)|(?<=(?:19|20)\d\d-))  # not in CVE-2021-44228
        (?P<y>{_YEAR})\b(?!-(?!{_YEAR}\b)\w)(?!\s*年)
  | (?P<zh>(?:(?P<zh_y>{_YEAR}|去年|今年|前年|明年)年?的?)?(?P<zh_m>1[0-2]|0?[1-9]|十[一二]?|[一二三四五六七八九])月份?
        (?:(?P<zh_d>[12]\d|3[01]|0?[1-9]|[二三]?十[一二三四五六七八九]?|[一二三四五六七八九])[日号號])?)
  | (?P<zhy>(?P<zhy_y>{_YEAR})年)
  | (?P<zhago>(?P<zhago_n>{_HAN_COUNT})(?:个|個)?(?P<zhago_u>天|日|周|星期|礼拜|月|年)(?:以|之)?前)
  | (?P<zhwd>(?P<zhwd_w>上上|上|这|這|本|下)?个?(?:周|週|星期|礼拜)(?P<zhwd_d>[一二三四五六日天末]))
  | (?P<zhrel>(?P<zhrel_w>上上|上|这|這|本|下)(?:一)?个?(?P<zhrel_u>周|週|星期|礼拜|月|年))
  | (?P<zhword>大前天|前天|昨天|昨日|昨晚|今天|今日|今晚|明天|后天|去年|今年|前年|明年)
    """,
    re.IGNORECASE | re.VERBOSE,
)
# "the week before 3 August", "two weeks before": what is told there lies in those days, and is often told on the day.
_BEFORE: Final = re.compile(
    rf"(?:(?P<n>{_COUNT})\s+)?(?P<u>{_UNIT}|weekend)s?\s+(?:before|prior\s+to|leading\s+up\s+to)\s*$", re.IGNORECASE
)
# "before March", but not "the week before 3 May", which is of those days. How far off a day may be to be one to come.
_UNTIL: Final = re.compile(
    rf"(?<!\w)(?:(?P<near>(?:{_UNIT}|weekend|night|morning|right|just|soon|shortly)s?\W+))?"
    r"(?:before|prior\s+to)\s+(?:(?:the|early|mid|late)[\s-]+)*$",
    re.IGNORECASE,
)
_UNTIL_BEHIND: Final = re.compile(r"\s?(?:之前|以前|より前|이전|전에)")
SOON_DAYS: Final = 92
# "since March", "from 3 May on", "after 2024", 自3月: until today. "The day after 3 May" is that day, more or less.
_OPEN: Final = re.compile(
    rf"(?:\b(?P<near>{_UNIT}|weekend|night|morning|right|just|soon|shortly)s?\s+)?"
    r"(?:\b(?:since|seit|(?P<after>after)|(?P<upto>from))\s+(?:(?:the|early|mid|late)[\s-]+)*|自从?)$",
    re.IGNORECASE,
)
_OPEN_BEHIND: Final = re.compile(r"\s?(?:以来|以來|から|부터)")
_UP_TO_NOW: Final = re.compile(
    r",?\s*(?:on\b(?!\s+\w)|onwards?\b|(?:until|till|to|up to)\s+(?:now|date)\b)", re.IGNORECASE
)
_BETWEEN: Final = re.compile(r"\s*(?:and|to|until|through|till|-|–|—|到|至)\s*\Z", re.IGNORECASE)

# Every note is asked whether it names a time: a set of words answers ten times as fast as one pattern.
_TIME_WORDS: Final = frozenset({
    "yesterday", "today", "tonight", "tomorrow", "last", "next", "ago", "since", "week", "weeks", "weekend", "weekends",
    "month", "months", "year", "years", "day", "days", "hour", "hours", "morning", "evening", "noon", "recently",
    *_DAYS, *_MONTHS,
} - {"may", "march"})  # fmt: skip
_WORDS: Final = re.compile(r"\w+")
# A year, or an hour. What comes before the first figure is looked at behind it: so `re` finds the next one quickly.
_FIGURES: Final = re.compile(r"\d(?<!\w.)(?:(?:(?<=1)9|(?<=2)0)\d\d\b|\d?(?::\d\d|\s?[ap]m\b))")
_MONTHS_OR_VERBS: Final = re.compile(r"\b(?:[io]n (?:may|march)\b|(?:may|march) \d)")
_HAN_TIMES: Final = re.compile(
    r"[昨今明前后]天|[上下这本]个?[周月]|[去今明前]年|\d+[年月日号]|[一二三四五六七八九十]+月|星期|小时"
)
_WHEN: Final = re.compile(
    r"^\W*(?:(?:and|so|but)\s+)?(?:when\b|since when\b|(?:in|on|at|by)?\s*(?:which|what)\s+(?:exact\s+)?"
    r"(?:date|day|week|weekend|month|year|time|season)\b|how long (?:ago|since)\b)|"
    r"什么时候|什麼時候|何时|何時|哪[一]?[年天月日]|几[月号点时]|幾[月號點時]|多久",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Days:
    """From the morning of ``start`` to the morning of ``stop``."""

    start: date
    stop: date


def named(question: str, today: date) -> tuple[Days, ...]:
    """The days that ``question`` names, in its order, at most MOST; those of a month without a year are given for each
    of the last YEARS years, the current one and the next. What lasts since then ends today.

    Relative ones ("two days ago", "last week", 上周) are counted from ``today``; weeks begin on Monday. A date that
    does not exist names nothing.
    """
    question, _ = date_phrases.readable(question[:READ].translate(_DOTTED))
    found: list[tuple[Days, ...]] = []
    opened: tuple[Days, ...] | None = None
    end = -1
    for hit in _NAMED.finditer(question):
        days = tuple(_days(hit, today))
        if not days:
            continue
        # Another date closes what the first one opens.
        opened = _opened(question, hit, days, today) if opened is None else ()
        if not opened and (until := _until(question, hit, days, today)):
            days = until
        elif (before := _BEFORE.search(question[max(hit.start() - 40, 0) : hit.start()])) is not None:
            days = tuple(_leading_up(before, each) for each in days)
        between = question[end : hit.start()] if end >= 0 else ""
        if found and _BETWEEN.match(between) and len(days) == 1:
            # "between August 11 and August 15 2023": the year is said once
            first = [each for each in found[-1] if len(found[-1]) == 1 or each.start.year == days[0].start.year]
            if first:
                found.pop()
                days = (Days(min(first[0].start, days[0].start), max(first[0].stop, days[0].stop)),)
        found.append(days)
        end = hit.end()
        if len(found) == MOST:
            break
    if opened:
        found = [opened]
    return tuple(dict.fromkeys(each for days in found for each in days))


def _opened(question: str, hit: re.Match[str], days: tuple[Days, ...], today: date) -> tuple[Days, ...]:
    """The days up to today, where that is said; of those of several years from the last that has begun."""
    name = hit.start("m_m") if hit["m_m"] else hit.start()
    said = _OPEN.search(question[max(name - 40, 0) : name])
    if said is None and _OPEN_BEHIND.match(question, hit.end()) is None:
        return ()
    if said is not None and (said["near"] or (said["upto"] and not _UP_TO_NOW.match(question, hit.end()))):
        return ()
    begun = [each.stop if said is not None and said["after"] else each.start for each in days]
    return tuple(Days(start, _after(today, 1)) for start in begun if start <= today)[-1:]


def _until(question: str, hit: re.Match[str], days: tuple[Days, ...], today: date) -> tuple[Days, ...]:
    """All days up to what "before March" says; of those of several years up to the last that is not far off."""
    name = hit.start("m_m") if hit["m_m"] else hit.start()
    said = _UNTIL.search(question[max(name - 40, 0) : name])
    if said["near"] if said is not None else _UNTIL_BEHIND.match(question, hit.end()) is None:
        return ()
    stops = [each.start for each in days if each.start <= _after(today, SOON_DAYS)]
    return (Days(date.min, stops[-1]),) if stops else ()


def worded(question: str) -> tuple[str, str, bool]:
    """The words of ``question`` that name days, as they stand there, with blanks between; what is left of it without
    them; and whether they are of another language than English."""
    readable, had = date_phrases.readable(question[:READ].translate(_DOTTED))
    hits = [hit[0] for hit in _NAMED.finditer(readable)]
    return " ".join([*hits, had]), _NAMED.sub(" ", readable), bool(had) or not all(map(str.isascii, hits))


def asks_when(question: str) -> bool:
    """Return whether it asks for a time."""
    return any(pattern.search(question[:READ]) for pattern in (_WHEN, date_phrases.WHEN))


def tells_time(text: str) -> bool:
    """Return whether a time is named in it, by date or by word."""
    text = text[:READ].lower()
    words = set(_WORDS.findall(text))
    if not _TIME_WORDS.isdisjoint(words) or _FIGURES.search(text):
        return True
    if not words.isdisjoint(("may", "march")) and _MONTHS_OR_VERBS.search(text):
        return True
    return not text.isascii() and _HAN_TIMES.search(text) is not None


YEARS: Final = 10


def _days(hit: re.Match[str], today: date) -> Iterator[Days]:
    groups = {name: value for name, value in hit.groupdict().items() if value is not None}
    kind = next(name for name in _KINDS if name in groups)
    match kind:
        case "iso":
            yield from _civil(int(groups["iy"]), int(groups["im"]), _number(groups.get("id")), today)
        case "dm" | "md":
            year = groups.get(f"{kind}_y")
            # "may 7" and "march 7" are dates, "they may 10 times" hardly occurs
            yield from _civil(
                None if year is None else int(year), _month(groups[f"{kind}_m"]), _number(groups[f"{kind}_d"]), today
            )
        case "my":
            yield from _civil(int(groups["my_y"]), _month(groups["my_m"]), None, today)
        case "m":
            yield from _month_alone(groups["m_before"].casefold(), groups["m_m"], today)
        case "ago":
            yield _ago(_count(groups["ago_n"]), groups["ago_u"].casefold(), today)
        case "past":
            yield Days(_back(today, _count(groups["past_n"]), groups["past_u"].casefold()), _after(today, 1))
        case "rel":
            yield from _relative(groups["rel_w"].casefold(), groups["rel_u"].casefold(), today)
        case "word":
            word = groups["word"].casefold()
            shift = {"yesterday": -1, "tomorrow": 1}.get(word, -2 if word.startswith("the") else 0)
            yield _day(today, shift)
        case "wd":
            yield _weekday("last", _DAYS.index(groups["wd_d"].casefold()), today)
        case "y":
            yield from _civil(int(groups["y"]), None, None, today)
        case _:
            yield from _chinese(kind, groups, today)


_KINDS: Final = (
    "iso", "dm", "md", "my", "m", "ago", "past", "rel", "word", "wd", "y", "zh", "zhy", "zhago", "zhwd", "zhrel",
    "zhword",
)  # fmt: skip


def _chinese(kind: str, groups: dict[str, str], today: date) -> Iterator[Days]:
    match kind:
        case "zh":
            year = groups.get("zh_y")
            month, day = _han(groups["zh_m"])[0], groups.get("zh_d")
            number = None if year is None else _han_year(year, today)
            yield from _civil(number, month, None if day is None else _han(day)[0], today)
        case "zhy":
            yield from _civil(int(groups["zhy_y"]), None, None, today)
        case "zhago":
            between = [_ago(count, _ZH_UNITS[groups["zhago_u"]], today) for count in _han(groups["zhago_n"])]
            yield Days(min(each.start for each in between), max(each.stop for each in between))
        case "zhwd":
            which, day = groups.get("zhwd_w"), groups["zhwd_d"]
            monday = today - timedelta(days=today.weekday())
            shift = {"上上": -14, "上": -7, "下": 7}.get(which or "", 0)
            if day == "末":
                yield Days(_after(monday, shift + 5), _after(monday, shift + 7))
            else:
                at = _after(monday, shift + ("一二三四五六日天".index(day) if day != "天" else 6))
                yield Days(at, _after(at, 1))
        case "zhrel":
            word = {"上上": "before last", "上": "last", "下": "next"}.get(groups["zhrel_w"], "this")
            yield from _relative(word, _ZH_UNITS[groups["zhrel_u"]], today)
        case _:
            word = groups["zhword"]
            if word[-1] == "年":
                yield from _civil(_han_year(word, today), None, None, today)
            else:
                shifts = {"大前天": -3, "前天": -2, "昨": -1, "今": 0, "明": 1, "后天": 2}
                yield _day(today, shifts.get(word, shifts.get(word[0], 0)))


_ZH_UNITS: Final = {
    "天": "day", "日": "day", "周": "week", "週": "week", "星期": "week", "礼拜": "week", "月": "month", "年": "year",
}  # fmt: skip


def _civil(year: int | None, month: int | None, day: int | None, today: date) -> Iterator[Days]:
    """A year, a month or a day; without a year that of each year in reach."""
    years = range(today.year - YEARS, today.year + 2) if year is None else (year,)
    for each in years:
        try:
            if month is None:
                yield Days(date(each, 1, 1), date(each + 1, 1, 1))
            elif day is None:
                first = date(each, month, 1)
                yield Days(first, _months(first, 1))
            else:
                at = date(each, month, day)
                yield Days(at, _after(at, 1))
        except (ValueError, OverflowError):
            continue


def _month_alone(before: str, name: str, today: date) -> Iterator[Days]:
    month = _month(name)
    if before in ("last", "this", "next"):
        past, future = before == "last", before == "next"
        year = today.year + (1 if future and month <= today.month else 0) - (1 if past and month >= today.month else 0)
        yield from _civil(year, month, None, today)
    else:
        yield from _civil(None, month, None, today)


def _ago(count: int, unit: str, today: date) -> Days:
    """As exact as people are: "two weeks ago" is that week, more or less."""
    at = _back(today, count, unit)
    slack = {"day": 0, "week": 3, "fortnight": 4, "month": 15, "year": 90}[unit] if count else 0
    return Days(_after(at, -slack), _after(at, slack + 1))


def _relative(word: str, unit: str, today: date) -> Iterator[Days]:
    if unit in _DAYS:
        yield _weekday("next" if word == "next" else "last", _DAYS.index(unit), today)
        return
    if unit == "night":
        yield _day(today, 0 if word == "this" else -1)
        return
    steps = {"this": 0, "next": 1, "before last": -2}.get(word, -1)
    monday = _after(today, -today.weekday())
    match unit:
        case "day":
            yield _day(today, steps)
        case "week" | "fortnight":
            span = 14 if unit == "fortnight" else 7
            start = _after(monday, span * steps)
            yield Days(start, _after(start, span))
        case "weekend":
            start = _after(monday, 7 * steps + 5)
            yield Days(start, _after(start, 2))
        case "month":
            first = _months(today.replace(day=1), steps)
            yield Days(first, _months(first, 1))
        case _:
            yield from _civil(today.year + steps, None, None, today)


def _leading_up(before: re.Match[str], days: Days) -> Days:
    count = _count(before["n"]) if before["n"] else 1
    unit = before["u"].casefold()
    return Days(_back(days.start, max(count, 1), "week" if unit == "weekend" else unit), days.stop)


def _weekday(word: str, wanted: int, today: date) -> Days:
    ahead = (wanted - today.weekday() - 1) % 7 + 1
    at = _after(today, ahead if word == "next" else ahead - 7 if ahead != 7 else -7)
    return Days(at, _after(at, 1))


def _day(today: date, shift: int) -> Days:
    at = _after(today, shift)
    return Days(at, _after(at, 1))


def _back(at: date, count: int, unit: str) -> date:
    if unit in ("month", "year"):
        return _months(at, -count * (12 if unit == "year" else 1))
    return _after(at, -count * {"day": 1, "week": 7, "fortnight": 14}[unit])


def _after(at: date, days: int) -> date:
    return date.fromordinal(min(max(at.toordinal() + days, 1), date.max.toordinal()))


def _months(at: date, count: int) -> date:
    """The same day of another month, or its last one."""
    months = min(max(at.year * 12 + at.month - 1 + count, 12), 9999 * 12 + 11)
    year, month = divmod(months, 12)
    for day in range(at.day, 27, -1):
        try:
            return date(year, month + 1, day)
        except ValueError:
            continue
    return date(year, month + 1, min(at.day, 28))


def _month(name: str) -> int:
    start = name[:3].casefold()
    return next(number for number, month in enumerate(_MONTHS, 1) if month.startswith(start))


def _number(text: str | None) -> int | None:
    return None if text is None else int(re.sub(r"\D", "", text))


def _count(text: str) -> int:
    text = " ".join(text.casefold().split())
    return _NUMBERS[text] if text in _NUMBERS else int(text)


def _han(text: str) -> list[int]:
    """十二, 二十, 12 as a number below a thousand; of 两三, 十二三, 二三十 those between which it is."""
    if text.isdecimal():
        return [int(text)]
    tens, ten, ones = text.rpartition("十")
    return [_HAN[a] * 10 + _HAN[b] for a in tens or ("一" if ten else "零") for b in ones or "零"]


def _han_year(text: str, today: date) -> int:
    named_years = {"前年": -2, "去年": -1, "今年": 0, "明年": 1}
    return today.year + named_years[text] if text in named_years else int(text)
