"""Dates in questions, times in texts, names before them, topics: what people write, and whatever else there is."""

from __future__ import annotations

from datetime import date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avmfs.text import speech
from avmfs.text.dates import _DAYS, _NUMBERS, Days, asks_when, named, tells_time
from avmfs.text.topics import topics

TODAY = date(2026, 3, 7)  # a Saturday


def days(start: str, stop: str) -> Days:
    return Days(date.fromisoformat(start), date.fromisoformat(stop))


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What did she do on 7 May 2023?", ("2023-05-07", "2023-05-08")),
        ("on the 7th of May, 2023", ("2023-05-07", "2023-05-08")),
        ("May 7, 2023", ("2023-05-07", "2023-05-08")),
        ("December 1,2023", ("2023-12-01", "2023-12-02")),
        ("log of 2023-05-07T10:00", ("2023-05-07", "2023-05-08")),
        ("2023/05", ("2023-05-01", "2023-06-01")),
        ("in 2023-2024", ("2023-01-01", "2025-01-01")),
        ("mid-2023", ("2023-01-01", "2024-01-01")),
        ("in May 2023", ("2023-05-01", "2023-06-01")),
        ("what happened in 2023?", ("2023-01-01", "2024-01-01")),
        ("between August 11 and August 15 2023", ("2023-08-11", "2023-08-16")),
        ("the week before August 3, 2023", ("2023-07-27", "2023-08-04")),
        ("two weeks before August 11, 2023", ("2023-07-28", "2023-08-12")),
        ("yesterday", ("2026-03-06", "2026-03-07")),
        ("the day before yesterday", ("2026-03-05", "2026-03-06")),
        ("two days ago", ("2026-03-05", "2026-03-06")),
        ("2 weeks ago", ("2026-02-18", "2026-02-25")),
        ("a couple of  weeks ago", ("2026-02-18", "2026-02-25")),
        ("a couple of weeks before August 11, 2023", ("2023-07-28", "2023-08-12")),
        ("last week", ("2026-02-23", "2026-03-02")),
        ("this month", ("2026-03-01", "2026-04-01")),
        ("last month", ("2026-02-01", "2026-03-01")),
        ("last Friday", ("2026-03-06", "2026-03-07")),
        ("last FRİDAY", ("2026-03-06", "2026-03-07")),
        ("a fortnıght ago", ("2026-02-17", "2026-02-26")),
        ("on Monday", ("2026-03-02", "2026-03-03")),
        ("what changed since Wednesday", ("2026-03-04", "2026-03-08")),
        ("updates after Monday", ("2026-03-03", "2026-03-08")),
        ("token lifetime before November", ("0001-01-01", "2025-11-01")),
        ("the plan before April", ("0001-01-01", "2026-04-01")),
        ("prior to early May 2025", ("0001-01-01", "2025-05-01")),
        ("what was it before 2024-06-03", ("0001-01-01", "2024-06-03")),
        ("notes from before the last 2 weeks", ("0001-01-01", "2026-02-21")),
        ("pre-2024-05-01 decisions", ("2024-05-01", "2024-05-02")),
        ("journal-2024-05-03", ("2024-05-03", "2024-05-04")),
        ("next week", ("2026-03-09", "2026-03-16")),
        ("last weekend", ("2026-02-28", "2026-03-02")),
        ("in the past 3 months", ("2025-12-07", "2026-03-08")),
        ("last May", ("2025-05-01", "2025-06-01")),
        ("上周谁来了", ("2026-02-23", "2026-03-02")),
        ("上周五", ("2026-02-27", "2026-02-28")),
        ("昨天说了什么", ("2026-03-06", "2026-03-07")),
        ("前天", ("2026-03-05", "2026-03-06")),
        ("三天前", ("2026-03-04", "2026-03-05")),
        ("３日前", ("2026-03-04", "2026-03-05")),
        ("两三天前", ("2026-03-04", "2026-03-06")),
        ("十二三天前", ("2026-02-22", "2026-02-24")),
        ("二十三天前", ("2026-02-12", "2026-02-13")),
        ("二三十年前", ("1995-12-08", "2006-06-06")),
        ("两周前", ("2026-02-18", "2026-02-25")),
        ("上个月", ("2026-02-01", "2026-03-01")),
        ("去年五月", ("2025-05-01", "2025-06-01")),
        ("2023年5月7日", ("2023-05-07", "2023-05-08")),
        ("2023年十二月二十三日", ("2023-12-23", "2023-12-24")),
        ("2023年发生了什么", ("2023-01-01", "2024-01-01")),
        ("port of the database since March", ("2026-03-01", "2026-03-08")),
        ("since early May", ("2025-05-01", "2026-03-08")),
        ("since March 2024?", ("2024-03-01", "2026-03-08")),
        ("since the 3rd of May 2025", ("2025-05-03", "2026-03-08")),
        ("since last week", ("2026-02-23", "2026-03-08")),
        ("after May", ("2025-06-01", "2026-03-08")),
        ("after 7 May 2023, who was there", ("2023-05-08", "2026-03-08")),
        ("from 1 April 2025 on", ("2025-04-01", "2026-03-08")),
        ("from May until now", ("2025-05-01", "2026-03-08")),
        ("the minutes from May 2023", ("2023-05-01", "2023-06-01")),
        ("the day after 7 May 2023", ("2023-05-07", "2023-05-08")),
        ("from 3 May 2025 to 5 May 2025", ("2025-05-03", "2025-05-06")),
        ("after 2027", ("2027-01-01", "2028-01-01")),
        ("seit 2024", ("2024-01-01", "2026-03-08")),
        ("自2024年5月", ("2024-05-01", "2026-03-08")),
    ],
)
def test_what_a_question_names(question: str, expected: tuple[str, str]) -> None:
    assert named(question, TODAY) == (days(*expected),)


LAST_WEEK, LAST_MONTH = ("2026-02-23", "2026-03-02"), ("2026-02-01", "2026-03-01")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Was habe ich letzte Woche geschrieben?", LAST_WEEK),
        ("in der vorigen Woche", LAST_WEEK),
        ("qu'est-ce que j'ai écrit la semaine dernière", LAST_WEEK),
        ("la reunión de la semana pasada", LAST_WEEK),
        ("что я писала на прошлой неделе", LAST_WEEK),
        ("ماذا كتبت الأسبوع الماضي", LAST_WEEK),
        ("先週何を書いた", LAST_WEEK),
        ("지난주에 뭐 썼지", LAST_WEEK),
        ("지난 달 예산", LAST_MONTH),
        ("先月の予算について", LAST_MONTH),
        ("le budget du mois dernier", LAST_MONTH),
        ("im letzten Monat", LAST_MONTH),
        ("el próximo mes", ("2026-04-01", "2026-05-01")),
        ("в этом году", ("2026-01-01", "2027-01-01")),
        ("هذا الشهر", ("2026-03-01", "2026-04-01")),
        ("gestern", ("2026-03-06", "2026-03-07")),
        ("Qu'est-ce que j'ai écrit hier ?", ("2026-03-06", "2026-03-07")),
        ("avant-hier", ("2026-03-05", "2026-03-06")),
        ("어제", ("2026-03-06", "2026-03-07")),
        ("vor zwei Wochen", ("2026-02-18", "2026-02-25")),
        ("il y a 3 jours", ("2026-03-04", "2026-03-05")),
        ("hace tres días", ("2026-03-04", "2026-03-05")),
        ("две недели назад", ("2026-02-18", "2026-02-25")),
        ("неделю назад", ("2026-02-25", "2026-03-04")),
        ("قبل ثلاثة أيام", ("2026-03-04", "2026-03-05")),
        ("두 주 전", ("2026-02-18", "2026-02-25")),
        ("３日前", ("2026-03-04", "2026-03-05")),
        ("작년 5월", ("2025-05-01", "2025-06-01")),
        ("2025년 5월 3일", ("2025-05-03", "2025-05-04")),
        ("昨年5月", ("2025-05-01", "2025-06-01")),
        ("am 3. März 2026", ("2026-03-03", "2026-03-04")),
        ("le 1er mai 2025", ("2025-05-01", "2025-05-02")),
        ("3 de mayo de 2025", ("2025-05-03", "2025-05-04")),
        ("3 мая 2025", ("2025-05-03", "2025-05-04")),
        ("Was gilt seit letzter Woche?", ("2026-02-23", "2026-03-08")),
        ("depuis mars 2025", ("2025-03-01", "2026-03-08")),
        ("avant avril", ("0001-01-01", "2026-04-01")),
        ("до марта 2025", ("0001-01-01", "2025-03-01")),
        ("avant le 3 mai 2025", ("0001-01-01", "2025-05-03")),
        ("vor dem 3. Mai 2025", ("0001-01-01", "2025-05-03")),
        ("antes del 3 de mayo de 2025", ("0001-01-01", "2025-05-03")),
        ("2025年5月之前的决定", ("0001-01-01", "2025-05-01")),
        ("2025年5月より前", ("0001-01-01", "2025-05-01")),
        ("2025년 5월 이전 기록", ("0001-01-01", "2025-05-01")),
        ("depuis le 3 mai 2025", ("2025-05-03", "2026-03-08")),
        ("seit dem 3. Mai 2025", ("2025-05-03", "2026-03-08")),
        ("先週から何が変わった", ("2026-02-23", "2026-03-08")),
        ("从上周以来的变化", ("2026-02-23", "2026-03-08")),
        ("seit 3 Tagen", ("2026-03-04", "2026-03-08")),
    ],
)
def test_what_a_question_of_another_language_names(question: str, expected: tuple[str, str]) -> None:
    assert named(question, TODAY) == (days(*expected),)


@pytest.mark.parametrize(
    "question", ["in May", "on May 7", "五月", "5月7日", "im Mai", "en mai", "de mayo", "в мае", "5월", "في مايو"]
)
def test_a_date_without_a_year_is_that_of_any_year_near(question: str) -> None:
    years = [each.start.year for each in named(question, TODAY)]
    assert years == list(range(2016, 2028))


@pytest.mark.parametrize(
    "question",
    [
        "CVE-2021-44228",
        "O-2026-07",
        "OPS-2019",
        "",
        "may I come in?",
        "march on",
        "2024-02-30",
        "room 2100b",
        "the second",
        "一个月饼",
        "he won 3-2",
        "coupleof weeks ago",
        "一百二十天前",
        "1234天前",
        "who drew the 2 Mars missions",
        "morgen früh",
        "Woche",
        "Was steht hier?",
        "未来年份",
        "本来年轻的设计",
        "后来月报",
    ],
)
def test_what_names_no_day(question: str) -> None:
    assert named(question, TODAY) == ()


PIECES = [
    *"0123456789- /日月年前上周last weekdMayago,.:〇百二三十两个天３０İı",
    *_NUMBERS,
    *("letzte ", "Woche", "vor ", "seit ", " назад", "mars ", "지난", "전", "월", "昨年"),
    *_DAYS,
    "fortnight",
    " ago",
    "天前",
]


@given(st.lists(st.sampled_from(PIECES), max_size=80).map("".join), st.dates())
def test_no_text_and_no_day_is_too_odd(text: str, today: date) -> None:
    for each in named(text, today):
        assert each.start < each.stop or date.max in (each.start, each.stop)
    asks_when(text), tells_time(text), speech.heading(text), topics(text)


def test_a_megabyte_is_read_as_fast_as_a_line() -> None:
    for text in (
        "last " * 200_000,
        "1" * 1_000_000,
        "May 7 and " * 100_000,
        "A" * 1_000_000,
        "Aa " * 300_000,
        "vor 3 " * 200_000,
    ):
        named(text, TODAY), asks_when(text), tells_time(text), speech.heading(text), topics(text)


def test_questions_for_a_time_and_texts_that_tell_one() -> None:
    for question in (
        "When did she go?",
        "what year was it",
        "In which month is it?",
        "什么时候去的",
        "他哪一年出生",
        "Seit wann?",
        "¿Cuándo?",
        "いつ",
    ):
        assert asks_when(question), question
    for question in ("What did she do when it rained?", "where is it", "谁去了", "いつも"):
        assert not asks_when(question), question
    for text in ("I went yesterday", "at 10:30", "we met last Friday", "in 1999", "昨天去了", "5月7日"):
        assert tells_time(text), text
    for text in ("I like tea", "you may go", "他喜欢茶"):
        assert not tells_time(text), text


@pytest.mark.parametrize(
    ("text", "speaker"),
    [
        ("Caroline: hi", ("carolin",)),
        ("**Mel**: hi", ("mel",)),
        ("- Mary Ann Smith: hi", ("mari", "ann", "smith")),
        ("[2023-05-08 13:56] Caroline: hi", ("carolin",)),
        ("张三：你好", ("张三",)),
        ("no one says this", ()),
        ("http://example.com", ()),
        ("12:30 lunch", ()),
    ],
)
def test_who_speaks(text: str, speaker: tuple[str, ...]) -> None:
    assert speech.heading(text).speaker == speaker


@pytest.mark.parametrize(
    ("text", "at", "flag"),
    [
        ("[2026-03-07T23:30:00-08:00] Ann: deployed", "2026-03-08T07:30", 0),
        ("2026-03-08 13:00:00.250+0530 Ann: deployed", "2026-03-08T07:30", 0),
        ("2026-03-08T07:30Z Ann: deployed", "2026-03-08T07:30", 0),
        ("[2026-03-08 07:30] Ann: deployed", "2026-03-08T07:30", speech.LOCAL),
        ("2026-03-08 07:30-11:30 Ann: deployed", "2026-03-08T07:30", speech.LOCAL),  # from and to
        ("2026-03-08 07:30:00-09:00:00 Ann: deployed", "2026-03-08T07:30", speech.LOCAL),
    ],
)
def test_when_it_is_said(text: str, at: str, flag: int) -> None:
    found = speech.heading(text)
    assert (found.at, found.flag) == (int(datetime.fromisoformat(at + "Z").timestamp()) * 10**9, flag)
    assert found.speaker == (() if "07:30-" in text or ":00-09" in text else ("ann",))


def test_topics_are_hashtags_names_and_titles() -> None:
    keys = dict(topics("# NVDA risk\nWe met Jensen Huang in Santa Clara about #Chips, and NVDA fell. The end."))
    assert keys == {
        "nvda": "NVDA",
        "risk": "risk",
        "chip": "Chips",
        "jensen huang": "Jensen Huang",
        "santa clara": "Santa Clara",
    }
    assert topics("hello world, what a day") == ()
    assert topics("frozen on Fridays after the October outage") == ()
    assert "阅读" in dict(topics("《红楼梦》和#阅读"))
