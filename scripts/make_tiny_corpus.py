"""Write the tiny English-Chinese corpus: 4,000 training pairs from a small grammar of our own.

    python scripts/make_tiny_corpus.py              # writes data/tiny/{train,val,test}.{en,zh}
    python scripts/make_tiny_corpus.py --out DIR    # writes them somewhere else
    python scripts/make_tiny_corpus.py --check      # exit code 1 if the files are not what this script writes

The corpus is small enough to be learned in a minute or two on a laptop, and still needs a real translator.
Every English sentence has exactly one translation in it, which cannot be found word by word:

- Order: times, places, companions and relative clauses come before the verb or noun they belong to,
  the object of "put" is fronted with 把, a cause comes before its effect, question words stay in place.
- Choice: "play" is 踢, 打, 弹 or 拉; "wear" is 穿 or 戴; "old" is 老, 旧 or 大; "a pair" is 双, 副 or 条;
  "not" is 不 or 没; and each noun has a measure word of its own.

The file goes from small to large: the lexicon, noun phrases, the `Clause` and how either language says it,
one function for each kind of sentence (it returns the English and the Chinese), the drawing of the splits.
Chance comes from `random.Random(seed).random()` alone, so every Python version writes the same bytes.
"""

import argparse
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

SEED = 20170612
SIZES = {"test": 200, "val": 200, "train": 4000}
MIN_WORDS, MAX_WORDS = 5, 20
SHORT = 10  # three in four sentences of fewer words are dropped: one vector can hold them whole
T = TypeVar("T")
Pair = tuple[str, str]  # English, Chinese


# ------------------------------------------------------------------------------------------------ lexicon


@dataclass(frozen=True)
class Phrase:
    """A phrase in both languages; an English verb agrees with `person` ("i", "he", "they")."""

    en: str = ""
    zh: str = ""
    person: str = "he"
    heavy: bool = False  # ends in a place or a relative clause: English cannot put an adverbial behind it


@dataclass(frozen=True)
class Noun:
    one: str
    many: str
    zh: str
    measure: str  # the measure word (classifier)
    kind: str
    unit: tuple[str, str] | None = None  # what English counts instead: ("cup", "cups") of tea


@dataclass(frozen=True)
class Verb:
    base: str
    third: str
    past: str
    ing: str
    senses: tuple[tuple[str, tuple[Noun, ...]], ...]  # a Chinese verb, and the objects that ask for it
    kind: str
    recipient: str  # "for" or "to", if it can be done for somebody (给)


def nouns(kind: str, table: str, unit: tuple[str, str] | None = None) -> dict[str, Noun]:
    """`table` holds rows "one many zh measure" between commas; `_` is a space."""
    rows = [row.split() for row in table.split(",")]
    return {one: Noun(one.replace("_", " "), many, zh, measure, kind, unit) for one, many, zh, measure in rows}


def verb(forms: str, senses: Mapping[str, str | Mapping[str, Noun]], kind: str = "action", to: str = "") -> Verb:
    """`forms` are base, third person, past, -ing; `senses` gives each Chinese verb its objects."""
    base, third, past, ing = (form.replace("_", " ") for form in forms.split())
    table = []
    for zh, objects in senses.items():
        named = [NOUNS[name] for name in objects.split()] if isinstance(objects, str) else objects.values()
        table.append((zh, tuple(named)))
    return Verb(base, third, past, ing, tuple(table), kind, to)


PEOPLE = (
    nouns("adult", "doctor doctors 医生 位, farmer farmers 农民 位, driver drivers 司机 位")
    | nouns("teacher", "teacher teachers 老师 位")
    | nouns("child", "student students 学生 个, boy boys 男孩 个, girl girls 女孩 个, child children 孩子 个")
)
KIN = nouns("kin", "mother mothers 妈妈 位, father fathers 爸爸 位, friend friends 朋友 个")
CLOTHES = nouns("clothes", "hat hats 帽子 顶, coat coats 大衣 件, shirt shirts 衬衫 件")
PAIRS = nouns("pair", "shoes shoes 鞋 双, glasses glasses 眼镜 副, trousers trousers 裤子 条", ("pair", "pairs"))
SMALL = nouns(
    "goods",
    "book books 书 本, newspaper newspapers 报纸 份, letter letters 信 封, umbrella umbrellas 雨伞 把, "
    "cup cups 杯子 个, watch watches 手表 块",
)
LARGE = nouns("goods", "car cars 汽车 辆, bicycle bicycles 自行车 辆, chair chairs 椅子 把, table tables 桌子 张")
ANIMALS = nouns("animal", "cat cats 猫 只, dog dogs 狗 只, horse horses 马 匹, bird birds 鸟 只")
FOOD = nouns("food", "apple apples 苹果 个, egg eggs 鸡蛋 个, cake cakes 蛋糕 个")
DRINKS = nouns("drink", "tea tea 茶 杯, coffee coffee 咖啡 杯, milk milk 牛奶 杯", ("cup", "cups"))
GAMES = nouns("game", "football _ 足球 _, basketball _ 篮球 _, the_piano _ 钢琴 _, the_violin _ 小提琴 _")
PORTABLE = CLOTHES | PAIRS | SMALL
WARES = PORTABLE | LARGE | ANIMALS | FOOD
NOUNS = PEOPLE | KIN | WARES | DRINKS | GAMES

PLAYED = {"踢": "football", "打": "basketball", "弹": "the_piano", "拉": "the_violin"}
WORN = {"戴": "hat watch glasses", "穿": "coat shirt shoes trousers"}
MADE = {"做": "cake chair table", "泡": "tea coffee"}
VERBS = (
    verb("buy buys bought buying", {"买": WARES}, to="for"),
    verb("read reads read reading", {"读": "book letter", "看": "newspaper"}),
    verb("write writes wrote writing", {"写": "letter"}, to="to"),
    verb("eat eats ate eating", {"吃": FOOD}),
    verb("drink drinks drank drinking", {"喝": DRINKS}),
    verb("wash washes washed washing", {"洗": "hat coat shirt shoes trousers apple cup car"}),
    verb("make makes made making", MADE, to="for"),
    verb("draw draws drew drawing", {"画": ANIMALS}, to="for"),
    verb("ride rides rode riding", {"骑": "horse bicycle"}),
    verb("help helps helped helping", {"帮助": PEOPLE}),
    verb("wait_for waits_for waited_for waiting_for", {"等": PEOPLE}),
    *[verb("play plays played playing", PLAYED)] * 3,  # thrice, because it has four senses to be learned
    *[verb("wear wears wore wearing", WORN, "wear")] * 2,
    verb("find finds found finding", {"找到": WARES}, "event"),
    verb("meet meets met meeting", {"遇见": PEOPLE}, "event"),
    verb("like likes liked liking", {"喜欢": WARES | DRINKS}, "taste"),
    verb("have has had having", {"有": WARES}, "state"),
    verb("need needs needed needing", {"需要": WARES}, "state"),
)
MOVES = (
    verb("put puts put putting", {"放在": PORTABLE}, "move"),
    verb("hide hides hid hiding", {"藏在": PORTABLE}, "move"),
    *[verb("give gives gave giving", {"给": PORTABLE | FOOD}, "move")] * 2,
)

ONE = {"a": "一"}
NUMBERS = {"two": "两", "three": "三", "four": "四", "five": "五", "six": "六", "seven": "七", "ten": "十"}
ORDINALS = {"first": "第一", "second": "第二", "third": "第三"}
SUBJECTS = {"i": "我", "you": "你", "he": "他", "she": "她", "we": "我们", "they": "他们"}
OBJECTS = {"me": "我", "you": "你", "him": "他", "her": "她", "us": "我们", "them": "他们"}
OWNERS = {"my": "我", "your": "你", "his": "他", "her": "她", "our": "我们", "their": "他们"}
COLOURS = {"black": "黑", "white": "白"}
ADJECTIVES = {  # in front of a noun, by the noun's kind
    "adult": {"young": "年轻的", "old": "老", "kind": "善良的"},
    "teacher": {"young": "年轻的", "kind": "善良的"},
    "child": {"clever": "聪明的", "happy": "快乐的"},
    "clothes": {"new": "新", "old": "旧", "red": "红"} | COLOURS,
    "goods": {"new": "新", "old": "旧", "big": "大", "small": "小"},
    "animal": {"old": "老", "big": "大", "small": "小"} | COLOURS,
    "food": {"big": "大", "small": "小"},
    "drink": {"hot": "热", "cold": "冰"},
    "pair": {"new": "新", "old": "旧"} | COLOURS,
}
MOODS = {"busy": "忙", "happy": "高兴", "tired": "累"}  # people are
QUALITIES = {"expensive": "贵", "cheap": "便宜"}  # things are
TALLER = {"taller": "高", "older": "大", "younger": "年轻"}
CHEAPER = {"cheaper": "便宜", "newer": "新", "older": "旧", "bigger": "大"}
PAST_TIMES = {"yesterday": "昨天", "this morning": "今天早上", "last week": "上周", "last year": "去年"}
HABIT_TIMES = {"every day": "每天", "every week": "每周", "every morning": "每天早上"}
FUTURE_TIMES = {"tomorrow": "明天", "next week": "下周", "next year": "明年", "tonight": "今晚"}
PLACES = {
    **{"in the park": "公园里", "in the garden": "花园里", "in the city": "城里", "by the river": "河边"},
    **{"at school": "学校", "at home": "家", "at the station": "车站", "at the market": "市场"},
}
SPOTS = {
    **{"on the table": "桌子上", "on the chair": "椅子上", "on the bed": "床上", "in the box": "箱子里"},
    **{"under the table": "桌子下面", "under the bed": "床下面", "in the bag": "包里"},
    **{"behind the door": "门后面", "beside the door": "门旁边", "beside the window": "窗户旁边"},
}
GREETINGS = {
    **{"hello": "你好{}", "good morning": "{}早上好", "good evening": "{}晚上好"},
    **{"goodbye": "{}再见", "thank you": "谢谢{}"},
}
GREETED = {
    **{"world": "世界", "teacher": "老师", "doctor": "医生", "mother": "妈妈", "father": "爸爸"},
    **{"friend": "朋友", "friends": "朋友们", "students": "同学们", "children": "孩子们"},
}


class Dice:
    """The only source of chance; `random()` is the one method whose sequence no Python version changes."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def entry(self, table: Mapping[str, str]) -> Phrase:
        return Phrase(*self.pick(list(table.items())))

    def noun(self, table: Mapping[str, Noun]) -> Noun:
        return self.pick(list(table.values()))

    def adjective(self, noun: Noun, probability: float = 0.5) -> Phrase:
        table = ADJECTIVES.get(noun.kind)
        return self.entry(table) if table and self.chance(probability) else Phrase()


# ------------------------------------------------------------------------------------------- noun phrases


def join(*words: str) -> str:
    return " ".join(word for word in words if word)


def count(number: Phrase, adj: Phrase, noun: Noun, *, single: bool) -> Phrase:
    """Number or pointer, adjective, noun: "a pair of old shoes" (一双旧鞋), "this hat" (这顶帽子)."""
    if noun.unit:
        en = join(noun.unit[0 if single else 1], "of", adj.en, noun.many)
    else:
        en = join(adj.en, noun.one if single else noun.many)
    article = "an" if number.en == "a" and en[0] in "aeiou" else number.en
    return Phrase(join(article, en), number.zh + noun.measure + adj.zh + noun.zh, "he" if single else "they")


def both(one: Phrase, two: Phrase) -> Phrase:
    return Phrase(f"{one.en} and {two.en}", f"{one.zh}和{two.zh}", "they")


def counted(dice: Dice, noun: Noun) -> Phrase:
    single = dice.chance(0.3)
    return count(dice.entry(ONE if single else NUMBERS), dice.adjective(noun), noun, single=single)


def pointed(dice: Dice, noun: Noun) -> Phrase:
    """ "this hat" (这顶帽子), "those three hats" (那三顶帽子), "the second hat" (第二顶帽子)."""
    adj, form = dice.adjective(noun, 0.3), dice.pick(("one", "one", "many", "many", "ordinal"))
    if form == "ordinal":
        number = dice.entry(ORDINALS)
        return count(replace(number, en=f"the {number.en}"), adj, noun, single=True)
    one, many, zh = dice.pick((("this", "these", "这"), ("that", "those", "那")))
    if form == "one":
        return count(Phrase(one, zh), adj, noun, single=True)
    number = dice.entry(NUMBERS)
    return count(Phrase(f"{many} {number.en}", zh + number.zh), adj, noun, single=False)


def owned(dice: Dice, noun: Noun) -> Phrase:
    """ "my hat" (我的帽子), "the boy's hat" (男孩的帽子), but without 的 "my mother" (我妈妈)."""
    adj, person = dice.adjective(noun, 0.3), "they" if noun.kind == "pair" else "he"
    if dice.chance(0.4):
        owner = dice.noun(PEOPLE)
        return Phrase(join(f"the {owner.one}'s", adj.en, noun.one), f"{owner.zh}的{adj.zh}{noun.zh}", person)
    pronoun = dice.entry(OWNERS)
    de = "" if noun.kind == "kin" and len(pronoun.zh) == 1 else "的"
    return Phrase(join(pronoun.en, adj.en, noun.one), f"{pronoun.zh}{de}{adj.zh}{noun.zh}", person)


def the(dice: Dice, noun: Noun, *, adj: float = 0.4, pointer: str = "") -> Phrase:
    """Something known, bare in Chinese ("the boy", 男孩), or with 那 as the object of a verb (那顶帽子)."""
    adjective = dice.adjective(noun, adj)
    phrase = count(Phrase("the", pointer), adjective, noun, single=True)
    return phrase if pointer else replace(phrase, zh=adjective.zh + noun.zh)


def who_did(dice: Dice, noun: Noun) -> Phrase:
    """ "the girl who bought two hats yesterday" (昨天买了两顶帽子的女孩)."""
    said = clause(dice, tenses=(PAST, PAST, STATE, NOW), subject=Phrase("who"), rich=False)
    return Phrase(f"the {noun.one} who {said.predicate_en()}", f"{said.predicate_zh()}的{noun.zh}", heavy=True)


def person(dice: Dice, *, rich: bool = False, pronouns: Mapping[str, str] = SUBJECTS) -> Phrase:
    """A person; `rich` allows a relative clause or a second person."""
    noun = dice.noun(PEOPLE)
    if rich and dice.chance(0.3):
        return who_did(dice, noun)
    if rich and dice.chance(0.2):
        one, two = the(dice, noun), owned(dice, dice.noun(KIN))
        return both(one, two)
    form = dice.pick(("pronoun", "kin", "pointed", "many", "the", "the"))
    if form == "pronoun":
        pronoun = dice.entry(pronouns)
        return replace(pronoun, person={"i": "i", "he": "he", "she": "he"}.get(pronoun.en, "they"))
    if form == "kin":
        return owned(dice, dice.noun(KIN))
    if form == "pointed":
        return pointed(dice, noun)
    if form == "many":
        adj = dice.adjective(noun)
        return Phrase(join("the", adj.en, noun.many), f"{adj.zh}{noun.zh}们", "they")
    return the(dice, noun)


def somebody_else(dice: Dice, subject: Phrase) -> Phrase:
    """Draw the person that `subject` meets or helps: not "i helped me"."""
    third = {en: zh for en, zh in OBJECTS.items() if en in {"him", "her", "them"}}
    return person(dice, pronouns=third if subject.zh in {"我", "你", "我们"} else OBJECTS)


def known(dice: Dice, noun: Noun) -> Phrase:
    """ "the hat on the table" (桌子上的那顶帽子), "the hat that the boy bought" (男孩买的那顶帽子)."""
    if noun.kind == "drink":
        return pointed(dice, noun)
    verbs = [verb for verb in VERBS if verb.kind in PAST.kinds and any(noun in each for _, each in verb.senses)]
    one = count(Phrase("the", "那"), Phrase(), noun, single=True)
    if noun.unit or (noun in PORTABLE.values() and dice.chance(0.4)):
        spot = dice.entry(SPOTS)
        return Phrase(f"{one.en} {spot.en}", f"{spot.zh}的{one.zh}", heavy=True)
    doer, verb = person(dice), dice.pick(verbs)
    time = dice.entry(PAST_TIMES) if dice.chance(0.3) else Phrase()
    en = join(one.en, "that", doer.en, verb.past, time.en)
    zh = next(zh for zh, objects in verb.senses if noun in objects)
    return Phrase(en, f"{doer.zh}{time.zh}{zh}的{one.zh}", heavy=True)


# ------------------------------------------------------------------------------------------------ clauses


@dataclass(frozen=True)
class Tense:
    """A tense: the English form of the verb (`form`), and the Chinese words around it."""

    form: str
    marker: str
    denial: str  # what takes the marker's place in a negative; "" if there is no negative
    suffix: str
    times: Mapping[str, str]
    kinds: tuple[str, ...]  # of the verbs that have it


PAST = Tense("past", "", "没", "了", PAST_TIMES, ("action", "wear", "event", "move"))
HABIT = Tense("present", "", "", "", HABIT_TIMES, ("action", "wear"))
TASTE = Tense("present", "", "不", "", {}, ("taste",))
STATE = Tense("present", "", "不", "", {}, ("state",))
NOW = Tense("ing", "正在", "", "", {"now": "现在"}, ("action",))
FUTURE = Tense("will", "会", "不会", "", FUTURE_TIMES, ("action", "wear", "event", "move"))
MUST = Tense("must", "必须", "", "", FUTURE_TIMES, ("action", "move"))
WANT = Tense("want to", "想", "不想", "", {}, ("action", "move"))
LIKE = Tense("like to", "喜欢", "不喜欢", "", {}, ("action",))
IF = replace(FUTURE, form="present", marker="", denial="不")
BEFORE = replace(PAST, denial="", suffix="")
BASE = replace(FUTURE, form="base", marker="", denial="", kinds=("action", "move"))
TENSES = (PAST, PAST, PAST, PAST, HABIT, HABIT, TASTE, STATE, NOW, FUTURE, FUTURE, MUST, WANT, LIKE)
AUXILIARIES = {"past": ("did", "did", "did"), "ing": ("am", "is", "are"), "will": ("will", "will", "will"),
               "must": ("must", "must", "must")}  # fmt: skip


@dataclass(frozen=True)
class Clause:
    """One verb with its complements; each language has the same parts in its own order."""

    subject: Phrase
    verb: Verb
    zh: str  # the verb's sense
    noun: Noun  # of the object
    object: Phrase
    tense: Tense
    negative: bool = False
    time: Phrase = Phrase()
    place: Phrase = Phrase()
    companion: Phrase = Phrase()
    moved: Phrase = Phrase()  # what Chinese says before the verb: 给 and a person, or 把 and a thing
    adverb: str = ""  # 就, 为什么
    time_first: bool = False  # English opens with the time

    def auxiliary(self) -> str:
        forms = AUXILIARIES.get(self.tense.form, ("do", "does", "do"))
        return forms[("i", "he", "they").index(self.subject.person)]

    def main_verb(self) -> str:
        """The verb after an auxiliary."""
        if self.tense.form == "ing":
            return self.verb.ing
        return f"{self.tense.form} {self.verb.base}" if self.tense.form.endswith(" to") else self.verb.base

    def finite_verb(self) -> str:
        form, third = self.tense.form, self.subject.person == "he"
        if self.negative:
            return f"{self.auxiliary()} not {self.main_verb()}"
        if form == "past":
            return self.verb.past
        if form == "present":
            return self.verb.third if third else self.verb.base
        if form.endswith(" to"):
            return self.main_verb().replace(" to ", "s to ", 1) if third else self.main_verb()
        return self.main_verb() if form == "base" else f"{self.auxiliary()} {self.main_verb()}"

    def tail_en(self) -> str:
        time = "" if self.time_first else self.time.en
        return join(self.object.en, self.moved.en, self.companion.en, self.place.en, time)

    def predicate_en(self) -> str:
        return join(self.finite_verb(), self.tail_en())

    def question_en(self) -> str:
        return join(self.auxiliary(), self.subject.en, self.main_verb(), self.tail_en())

    def en(self) -> str:
        return join(self.time.en if self.time_first else "", self.subject.en, self.predicate_en())

    def predicate_zh(self) -> str:
        denial = "没" if self.zh == "有" else self.tense.denial
        marker = denial if self.negative else self.tense.marker
        place = "在" + self.place.zh if self.place.zh and marker != "正在" else self.place.zh
        verb = self.zh if self.negative else self.zh + self.tense.suffix
        front = self.time.zh + self.adverb + marker + self.companion.zh + place + self.moved.zh
        return front + verb + self.object.zh

    def chinese(self) -> str:
        return self.subject.zh + self.predicate_zh()


def thing(dice: Dice, noun: Noun, others: tuple[Noun, ...], tense: Tense, *, negative: bool, rich: bool) -> Phrase:
    """The object of a verb; which forms it may take depends on the tense."""
    adj = dice.adjective(noun, 0.3)
    if noun.kind == "game":
        return Phrase(noun.one, noun.zh)
    if tense is LIKE or (tense in (HABIT, TASTE) and dice.chance(0.5)):
        return Phrase(join(adj.en, noun.many), adj.zh + noun.zh)
    if negative and tense is not TASTE and dice.chance(0.5):  # what is denied is not counted: 没买帽子
        return replace(count(Phrase("a"), adj, noun, single=True), zh=adj.zh + noun.zh)
    if rich and tense is not HABIT and dice.chance(0.3):
        return known(dice, noun)
    if tense not in (HABIT, STATE) and dice.chance(0.2):
        return pointed(dice, noun) if noun.kind == "drink" else owned(dice, noun)
    if negative or tense is TASTE or (tense not in (HABIT, STATE) and dice.chance(0.25)):
        return pointed(dice, noun) if noun.unit or dice.chance(0.35) else the(dice, noun, pointer="那")
    one = counted(dice, noun)
    return both(one, counted(dice, dice.pick(others))) if others and dice.chance(0.2) else one


def clause(dice: Dice, *, tenses: Sequence[Tense] = TENSES, subject: Phrase | None = None, rich: bool = True,
           denial: float = 0.2) -> Clause:  # fmt: skip
    """Draw a clause; without `rich` it holds no relative clause; `denial` is the chance of a "not"."""
    tense, subject = dice.pick(tenses), subject or person(dice, rich=rich)
    negative = bool(tense.denial) and dice.chance(denial)
    time = dice.entry(tense.times) if tense is HABIT or (tense.times and dice.chance(0.6)) else Phrase()
    may_open = rich and tense is not BASE
    time_first = bool(time.en) and may_open and dice.chance(0.2)
    if "move" in tense.kinds and dice.chance(0.2):
        return replace(move(dice, subject, tense), negative=negative, time=time, time_first=time_first)
    verb = dice.pick([verb for verb in VERBS if verb.kind in tense.kinds])
    zh, objects = dice.pick(verb.senses)
    noun = dice.pick(objects)
    if noun in PEOPLE.values():
        object_ = somebody_else(dice, subject)
    else:
        others = tuple(other for other in objects if other != noun)
        object_ = thing(dice, noun, others, tense, negative=negative, rich=rich)
    place = companion = moved = Phrase()
    if object_.heavy:
        time, time_first = (time, bool(time.en)) if may_open else (Phrase(), False)
    elif verb.kind in {"action", "wear", "event"}:
        if verb.recipient and dice.chance(0.4):
            whom = somebody_else(dice, subject)
            moved = Phrase(f"{verb.recipient} {whom.en}", "给" + whom.zh)
        elif verb.kind == "action" and dice.chance(0.25):
            whom = somebody_else(dice, subject)
            companion = Phrase(f"with {whom.en}", f"和{whom.zh}一起")
        if dice.chance(0.45) and not (companion.en and tense is NOW):
            place = dice.entry(PLACES)
    return Clause(subject, verb, zh, noun, object_, tense, negative, time, place, companion, moved,
                  time_first=time_first)  # fmt: skip


def move(dice: Dice, subject: Phrase, tense: Tense) -> Clause:
    """ "put the hat on the table" (把帽子放在桌子上), "gave the hat to the boy" (把帽子给了男孩)."""
    verb = dice.pick(MOVES)
    ((zh, objects),) = verb.senses
    noun = dice.pick(objects)
    phrase = dice.pick((the, owned, pointed, counted))(dice, noun)
    if verb.base != "give":
        spot = dice.entry(SPOTS)
        goal = Phrase(f"{phrase.en} {spot.en}", spot.zh)
        return Clause(subject, verb, zh, noun, goal, tense, moved=Phrase("", "把" + phrase.zh))
    whom = somebody_else(dice, subject)
    if dice.chance(0.5):
        several = counted(dice, noun)
        gift = Phrase(f"{whom.en} {several.en}", whom.zh + several.zh)
        return Clause(subject, verb, zh, noun, gift, tense)
    goal = Phrase(f"{phrase.en} to {whom.en}", whom.zh)
    return Clause(subject, verb, zh, noun, goal, tense, moved=Phrase("", "把" + phrase.zh))


# ---------------------------------------------------------------------------------------------- sentences


def statement(dice: Dice) -> Pair:
    said = clause(dice)
    return f"{said.en()}.", f"{said.chinese()}。"


def yes_no(dice: Dice) -> Pair:
    said = replace(clause(dice, denial=0), time_first=False)
    if said.object.heavy:
        said = replace(said, time=Phrase())
    return f"{said.question_en()}?", f"{said.chinese()}吗？"


def wh_question(dice: Dice) -> Pair:
    """Ask for a part of a clause, which moves to the front in English and stays in its place in Chinese."""
    subject = person(dice, rich=True)
    said = clause(dice, tenses=(PAST, PAST, HABIT, FUTURE), subject=subject, rich=False, denial=0)
    said, noun = replace(said, time_first=False), said.noun
    asked = dice.pick(["who", "when", "why", *question_words(said)])
    if asked == "who":
        said = replace(said, subject=Phrase("who", "谁"))
        return f"{said.en()}?", f"{said.chinese()}？"
    if asked == "when":
        said = replace(said, time=Phrase("", "什么时候"))
    elif asked == "why":
        said = replace(said, adverb="为什么")
    elif asked == "where":
        said = replace(said, place=Phrase("", "哪里"))
    elif asked == "with whom":
        asked, said = "who", replace(said, companion=Phrase("with", "和谁一起"))
    else:
        if asked == "what":
            what = Phrase("what", "什么")
        elif asked == "whose":
            what = Phrase(f"whose {noun.one}", f"谁的{noun.zh}")
        else:
            number = {"which": Phrase("which", "哪"), "how many": Phrase("how many", "几")}[asked]
            what = count(number, dice.adjective(noun), noun, single=asked == "which")
        asked, said = what.en, replace(said, object=Phrase("", what.zh))
    return f"{asked} {said.question_en()}?", f"{said.chinese()}？"


def question_words(said: Clause) -> list[str]:
    """Return the questions about parts of this clause; "what" only for a verb that has a single sense."""
    words = []
    if said.verb.kind != "move":
        words.append("where")
        if said.noun.kind != "game" and said.noun not in PEOPLE.values():
            words += ["which", "how many", "whose"] + ["what"] * (len(said.verb.senses) == 1)
    return words + ["with whom"] * (said.verb.kind == "action" and not said.moved.en)


def said_that(dice: Dice) -> Pair:
    who, verb = person(dice, rich=True), dice.entry({"said": "说", "heard": "听说"})
    said = replace(clause(dice), time_first=False)
    if said.object.heavy:
        said = replace(said, time=Phrase())
    return f"{who.en} {verb.en} that {said.en()}.", f"{who.zh}{verb.zh}{said.chinese()}。"


def ask_to(dice: Dice) -> Pair:
    who, asking = person(dice, rich=True), dice.entry({"asked": "请", "told": "让", "wants": "想让"})
    if asking.en == "wants" and who.person != "he":
        asking = replace(asking, en="want")
    whom = somebody_else(dice, who)
    said = clause(dice, tenses=(BASE,), subject=replace(whom, person="they"))
    return (f"{who.en} {asking.en} {whom.en} to {said.predicate_en()}.", f"{who.zh}{asking.zh}{said.chinese()}。")


def request(dice: Dice) -> Pair:
    en, marker = dice.pick((("please", ""), ("please do not", "不要")))
    said = clause(dice, tenses=(BASE,), subject=Phrase("you", "你"))
    said = replace(said, tense=replace(BASE, marker=marker))
    return f"{en} {said.predicate_en()}.", f"请{said.predicate_zh()}。"


def feeling(dice: Dice, *, rich: bool = True) -> tuple[Phrase, Phrase, str]:
    """A subject, an adjective for it, and the form of "be" between them."""
    if dice.chance(0.5):
        noun = dice.noun(PORTABLE | LARGE)
        who, what = dice.pick((the, owned, pointed, known))(dice, noun), dice.entry(QUALITIES)
    else:
        who, what = person(dice, rich=rich), dice.entry(MOODS)
    return who, what, be(who)


def be(who: Phrase) -> str:
    return {"i": "am", "he": "is", "they": "are"}[who.person]


def describe(dice: Dice) -> Pair:
    who, what, is_ = feeling(dice)
    return dice.pick(
        (
            (f"{who.en} {is_} very {what.en}.", f"{who.zh}很{what.zh}。"),
            (f"{who.en} {is_} too {what.en}.", f"{who.zh}太{what.zh}了。"),
            (f"{who.en} {is_} not {what.en}.", f"{who.zh}不{what.zh}。"),
            (f"{is_} {who.en} {what.en}?", f"{who.zh}{what.zh}吗？"),
        )
    )


def compare(dice: Dice) -> Pair:
    """ "the boy is taller than the girl" (男孩比女孩高)."""
    if dice.chance(0.5):
        one, two, how = person(dice, rich=True), person(dice, pronouns=OBJECTS), dice.entry(TALLER)
    else:
        noun = dice.noun(PORTABLE | LARGE)
        one, two = dice.pick((owned, pointed, known))(dice, noun), dice.pick((owned, pointed))(dice, noun)
        how = dice.entry(CHEAPER)
    much, zh = dice.pick((("", ""), ("much", "得多"), ("a little", "一点")))
    if dice.chance(0.2):
        return f"{be(one)} {one.en} {how.en} than {two.en}?", f"{one.zh}比{two.zh}{how.zh}吗？"
    return f"{one.en} {join(be(one), much, how.en)} than {two.en}.", f"{one.zh}比{two.zh}{how.zh}{zh}。"


def there_is(dice: Dice) -> Pair:
    noun = dice.noun(PORTABLE | FOOD | ANIMALS)
    animal = noun in ANIMALS.values()
    spot = dice.entry({en: zh for en, zh in PLACES.items() if zh[-1] in "里边"} if animal else SPOTS)
    if dice.chance(0.25):
        what = count(Phrase("how many", "几"), dice.adjective(noun), noun, single=False)
        return f"{what.en} are there {spot.en}?", f"{spot.zh}有{what.zh}？"
    what = counted(dice, noun)
    if dice.chance(0.25):
        return f"{be(what)} there {what.en} {spot.en}?", f"{spot.zh}有{what.zh}吗？"
    also = dice.noun(ANIMALS if animal else PORTABLE | FOOD)
    if also != noun and dice.chance(0.6):
        what = replace(both(what, counted(dice, also)), person=what.person)
    return f"there {be(what)} {what.en} {spot.en}.", f"{spot.zh}有{what.zh}。"


def because(dice: Dice) -> Pair:
    """The cause comes first in Chinese, wherever English has it."""
    cause = clause(dice, tenses=(PAST, PAST, STATE, TASTE), rich=False)
    who, what, is_ = feeling(dice, rich=False)
    effect = Phrase(f"{who.en} {is_} very {what.en}", f"{who.zh}很{what.zh}")
    if dice.chance(0.6):
        result = clause(dice, tenses=(PAST, FUTURE), rich=False)
        effect = Phrase(result.en(), result.chinese())
    elif what.en not in MOODS:
        who = person(dice)
        effect = Phrase(f"{who.en} {be(who)} very happy", f"{who.zh}很高兴")
    zh = f"因为{cause.chinese()}，所以{effect.zh}。"
    if dice.chance(0.3):
        return f"because {cause.en()}, {effect.en}.", zh
    return f"{effect.en} because {cause.en()}.", zh


def if_then(dice: Dice) -> Pair:
    condition = clause(dice, tenses=(IF,), rich=False)
    result = replace(clause(dice, tenses=(FUTURE, FUTURE, MUST), rich=False), adverb="就", time_first=False)
    zh = f"如果{condition.chinese()}，{result.chinese()}。"
    if dice.chance(0.5):
        return f"if {condition.en()}, {result.en()}.", zh
    return f"{result.en()} if {condition.en()}.", zh


def before_after(dice: Dice) -> Pair:
    """The earlier or later event that English adds at the end opens the Chinese sentence."""
    word, zh, tense = dice.pick((("before", "以前", BEFORE), ("after", "以后", PAST)))
    first, main = (clause(dice, tenses=(tense,), rich=False, denial=0), clause(dice, tenses=(PAST,), rich=False))
    first = replace(first, time=Phrase(), time_first=False)
    if dice.chance(0.3):
        return f"{word} {first.en()}, {main.en()}.", f"{first.chinese()}{zh}，{main.chinese()}。"
    return f"{main.en()} {word} {first.en()}.", f"{first.chinese()}{zh}，{main.chinese()}。"


def but(dice: Dice) -> Pair:
    one, two = (clause(dice, tenses=(PAST, FUTURE, TASTE), rich=False, denial=d) for d in (0.0, 1.0))
    return f"{one.en()}, but {two.en()}.", f"{one.chinese()}，但是{two.chinese()}。"


def greetings() -> list[Pair]:
    """ "hello world" (你好世界) and its like; so few that all of them are trained on."""
    pairs = [(f"{en} {name}", zh.format(who)) for en, zh in GREETINGS.items() for name, who in GREETED.items()]
    return pairs + [(f"{en}!", f"{zh}！") for en, zh in pairs]


SENTENCES: tuple[Callable[[Dice], Pair], ...] = (
    *[statement] * 7, *[yes_no] * 3, *[wh_question] * 4, *[said_that] * 2, *[ask_to] * 2, request, describe,
    *[compare] * 2, there_is, *[because] * 3, *[if_then] * 2, *[before_after] * 2, but,
)  # fmt: skip


# ----------------------------------------------------------------------------------------------- the files


def make_splits() -> dict[str, list[Pair]]:
    """Draw the splits: no sentence of either language occurs twice, within a split or across them."""
    dice, pairs = Dice(SEED), greetings()
    translations, chinese = dict(pairs), {zh for _, zh in pairs}
    drawn: list[Pair] = []
    while len(drawn) < sum(SIZES.values()) - len(pairs):
        en, zh = dice.pick(SENTENCES)(dice)
        length = len(en.split())
        if not MIN_WORDS <= length <= MAX_WORDS or (length < SHORT and dice.chance(0.75)):
            continue
        assert translations.get(en, zh) == zh, f"{en!r} has two translations: {translations[en]} and {zh}"
        if en not in translations and zh not in chinese:
            drawn.append((en, zh))
            translations[en] = zh
            chinese.add(zh)
    held_out = SIZES["test"] + SIZES["val"]
    train = drawn[held_out:]
    for pair in pairs:  # anywhere, so that a head of the file holds some too
        train.insert(int(dice.pick(range(len(train)))), pair)
    return {"train": train, "val": drawn[SIZES["test"] : held_out], "test": drawn[: SIZES["test"]]}


def render() -> dict[str, bytes]:
    """The content of every file, by name."""
    files = {}
    for split, pairs in make_splits().items():
        for column, language in enumerate(("en", "zh")):
            files[f"{split}.{language}"] = "".join(f"{pair[column]}\n" for pair in pairs).encode("utf-8")
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the tiny English-Chinese corpus.")
    default = Path(__file__).resolve().parent.parent / "data" / "tiny"
    parser.add_argument("--out", type=Path, default=default, help="folder to write to (default: data/tiny)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the files there differ")
    args = parser.parse_args()
    files = render()
    if args.check:
        paths = {name: args.out / name for name in files}
        stale = [name for name, path in paths.items() if not path.is_file() or path.read_bytes() != files[name]]
        print(f"differs from what this script writes: {', '.join(stale)}" if stale else "up to date", file=sys.stderr)
        return 1 if stale else 0
    args.out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (args.out / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
