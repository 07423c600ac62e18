"""Words that carry no topic, in languages other than English: articles, pronouns, prepositions, conjunctions,
auxiliaries, words that ask.

Owns the closed classes, folded as index terms are. Many are words of English as well (*die*, *son*, *plus*): those of
Latin letters count where their language is spoken. Called by ``segment``. Takes any str, never raises; reads the
beginning of a long one.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

READ: Final = 2000
FEW: Final = 2
"""Function words that tell a language where one of them is no word of English: one alone may be a name (Eran, Ella)."""
SOME: Final = 3
"""Function words that tell a language though English has each, where there are fewer than half as many of its own."""

# A word a line would be ten pages.
_ENGLISH: Final = (
    "a about after all also am an and any are aren as at be because been before being between both but by can "
    "could couldn d did didn do does doesn doing don down during each every few for from further get got had "
    "hadn has hasn have haven having he her here hers him his how i if in into is isn it its itself just let ll "
    "m many may me might more most much must my no nor not of off on once only or other our ours out over own "
    "please re s same shall she should shouldn so some such t tell than that the their theirs them then there "
    "these they this those through to too under until up us ve very was wasn we were weren what when where "
    "which while who whom whose why will with would wouldn you your yours "
    "arent couldnt didnt doesnt dont hadnt hasnt havent heres hows im isnt ive shouldnt thats theres theyre wasnt "
    "werent whats whens wheres whos whys wouldnt youre"
)
ENGLISH: Final = frozenset(_ENGLISH.split())
_CLASSES: Final = {
    "german": (
        "der die das den dem des ein eine einen einem einer eines kein keine keinen keinem keiner keines ich du er "
        "sie es wir ihr mich dich ihn uns euch mir dir ihm ihnen sich man mein meine meinen meinem meiner meines "
        "dein deine deinen deinem deiner deines sein seine seinen seinem seiner seines ihre ihren ihrem ihrer ihres "
        "unser unsere unseren unserem unserer unseres euer eure euren eurem eurer dieser diese dieses diesen diesem "
        "jener jene jenes jenen jenem jeder jede jedes jeden jedem alle alles allen aller wer wen wem wessen was "
        "welcher welche welches welchen welchem wann wo woher wohin warum wieso weshalb wie wieviel viel womit wofur "
        "wovon woran worauf wozu wodurch worin woruber und oder aber sondern denn weil dass ob wenn als falls damit "
        "obwohl bevor nachdem wahrend seit bis in im an am auf aus bei beim mit nach von vom vor zu zum zur durch "
        "fur gegen ohne um uber unter hinter neben zwischen bin bist ist sind seid war warst waren wart gewesen habe "
        "hast hat haben habt hatte hattest hatten hattet gehabt werde wirst wird werden werdet wurde wurden geworden "
        "worden kann kannst konnen konnt konnte konnten muss musst mussen musste mussten soll sollst sollen sollte "
        "sollten will willst wollen wollte wollten darf darfst durfen durfte durften mag mogen mochte mochten nicht "
        "noch schon auch nur sehr so da hier dort dann ja nein doch etwas nichts etwa gibt lang lange"
    ),
    "french": (
        "le la les l un une du des de d au aux et ou mais donc or ni car que qu qui quoi dont quel quelle quels "
        "quelles quand comment pourquoi combien lequel laquelle lesquels lesquelles je j tu il elle on nous vous ils "
        "elles me m te t se s lui leur leurs moi toi soi eux y en ce c cet cette ces ceci cela ca celui celle ceux "
        "celles mon ma mes ton ta tes son sa ses notre nos votre vos ne n pas plus jamais rien aucun aucune si comme "
        "lorsque lorsqu puisque puisqu quoique parce afin avant apres pendant depuis dans sur sous avec sans pour "
        "par vers chez entre contre hors selon a est es suis sommes etes sont etais etait etions etaient ete etre "
        "sera serai seront serait fus fut furent ai as avons avez ont avais avait avions avaient eu avoir aura "
        "auront aurait fait faire fais font peut peux peuvent pouvons pouvez pouvoir doit dois doivent devons devez "
        "devoir faut veut veux va vais vont tres aussi encore deja ici tout toute tous toutes meme"
    ),
    "spanish": (
        "el la los las lo un una unos unas al del de y e o u ni pero sino que quien quienes cual cuales cuanto "
        "cuanta cuantos cuantas cuando donde adonde como por porque para si yo tu ella ello nosotros nosotras "
        "vosotros vosotras ellos ellas usted ustedes me te se nos os le les mi mis mio mia mios mias tus su sus suyo "
        "suya nuestro nuestra nuestros nuestras vuestro vuestra este esta esto estos estas ese esa eso esos esas "
        "aquel aquella aquello aquellos aquellas no ya a ante bajo con contra desde en entre hacia hasta segun sin "
        "sobre tras durante despues antes soy eres es somos son era eras eramos eran fue fui fueron ser sido sea "
        "sean siendo estoy estamos estan estaba estaban estar he has ha hemos han habia habian hay haber hube hubo "
        "tengo tienes tiene tenemos tienen tener tenia puedo puedes puede podemos pueden poder debo debe deben hago "
        "hace hacen hacer hacemos va van voy vamos ir muy mas menos tambien todo toda todos todas algo nada"
    ),
    "italian": (
        "il lo la i gli le l un uno una di a da in con su per tra fra del dello della dei degli delle d al allo alla "
        "ai agli alle dal dalla nel nella nei nelle sul sulla e ed o ma se che chi cui quale quali quanto quanta "
        "quanti quante quando dove come perche io tu lui lei noi voi loro mi ti si ci vi ne mio mia miei mie tuo tua "
        "suo sua suoi sue nostro nostra questo questa questi queste quello quella quelli non piu sono sei siamo "
        "siete era erano ho hai ha abbiamo hanno aveva puo possono posso deve devono fa"
    ),
}
# Of them, what stands in English texts as well: words, names, abbreviations, loans.
_NOT_TELLING: Final = (
    "die was war man will hat den am an in so als also ab da du er es wo ja dort mag etwa bin uns ob mir dir unter "
    "gibt bis seit hast falls um im wart wen dann dem des der von sie lang vor damit denn alle sein mit uber fur "
    "allen le la les l un d j c or car me m te t se s on en ton ta son sa y ne n pas plus si comment pour a as ai "
    "est es ce ma mes font sur par il tu de du au et eu ca tout dont fut fait vers faire contre entre hors je que "
    "elles moi qui fus vos lui sera serai encore meme sous sans mon avant apres pendant deja aura chez los las no e "
    "o u era sin sobre hay he has ha este ese van ir con poder lo al del mi su nos os el ante antes va mas yo ya "
    "todo sea eras fui nada mia mis sus ser esa eso una uno para ni han esta como soy hasta vamos algo contra i dal "
    "per tra ed ho lei mio sei fa fra di non come io ti ci vi loro chi dei hai dove alla quanta sue allo "
    "sean ella eran todos todas fue ces ont toi soi ici eux nur bei noch noi voi nel sono"
)
_WORDS: Final = {language: frozenset(words.split()) for language, words in _CLASSES.items()}
_MARKS: Final = {language: words - frozenset(_NOT_TELLING.split()) for language, words in _WORDS.items()}

TELLS_ENGLISH: Final = re.compile(
    r"\b(?:the|what|which|whose|who|why|how|when|where|does|did|is|are|of|and|to)\b", re.IGNORECASE
)
"""Words that none of those languages has: what has one is English, whatever else it quotes."""

_WORD: Final = re.compile(r"[^\W\d_]+")
_ELIDED: Final = re.compile(r"\b(?:[ldj]|qu)['’](?=[^\W\d_]{2})")
_ACCENTS: Final = re.compile("[\u0300-\u036f]+")

_RUSSIAN_AND_ARABIC: Final = (
    "и а но или либо да же ли бы б если что чтобы как когда где куда откуда кто кого кому кем ком чего чему "
    "чем чём какой какая какое какие какого каких какому какую каким какими каком чей чья чьё чьи сколько "
    "почему зачем который которая которое которые которого которых которому которую которой я ты он она оно мы "
    "вы они меня мне мной тебя тебе тобой его ему им нём нем её ее ей ней нас нам нами вас вам вами их ими них "
    "себя себе собой мой моя моё мое мои моего моей моих моему моим моём твой твоя твои наш наша наше наши "
    "нашего нашей наших нашему нашим нашу ваш ваша ваше ваши свой своя свои этот эта это эти этого этой этих "
    "этому этим этом эту тот та то те того той тех тому тем том ту весь вся всё все всего всех в во на с со к "
    "ко по о об обо от ото до из изо у за для при под над перед через без между про не ни нет быть есть был "
    "была было были будет будут буду будем можно нельзя надо нужно уже ещё еще тоже там тут здесь так من في "
    "على إلى عن عنه عنها مع منذ حتى بعد قبل بين عند لدى و ف ثم أو أم لكن بل أن إن إذا لو لا لم لن ما ليس هل أ "
    "كيف كم متى أين ماذا لماذا أي أية هذا هذه ذلك تلك هؤلاء الذي التي الذين هو هي هم نحن أنا أنت كان كانت "
    "كانوا يكون تكون سيكون ستكون قد سوف كل يجب يمكن الآن هنا هناك عندي عندنا لدينا اين الى ان اذا او انا انت"
)
# Of other languages, without those that are words of English too (die, son, van, con).
_LATIN: Final = (
    "der das dem des ist sind ein eine einen einem einer und oder aber von zu zum zur im auf mit bei nach aus "
    "als bis uber um wann wo wohin woher wer wie wieviel viel welche welcher welches haben habe hatte hatten wird "
    "werden wurde wurden sich nicht ich wir unser unsere ihr es gibt kann konnen muss mussen soll sollen darf durfen "
    "mein meine warum le la les un une du et est sont que qui quoi ou "
    "quand dans avec au aux ce cette ses nous notre vous quel quelle pourquoi combien el los las y quien donde "
    "cuando como por para del su nuestro cuanto cual esta il che di per della nel dove quando het een de en"
)
ANYWHERE: Final = frozenset(f"{_LATIN} {_RUSSIAN_AND_ARABIC}".split())
"""English has none of these: they count for nothing wherever they stand."""


def spoken(text: str) -> frozenset[str]:
    """The function words of the language of Latin letters, other than English, that ``text`` is in, by those that no
    English text has; none, where it is in none. In capitals (WER, "Mr Das") they tell nothing, but for the first."""
    text = text[:READ]
    if TELLS_ENGLISH.search(text):
        return frozenset()
    plain = text if text.isascii() else _ACCENTS.sub("", unicodedata.normalize("NFD", text))
    words = _WORD.findall(plain)
    said = {word.casefold() for at, word in enumerate(words) if word.islower() or (not at and word.istitle())}
    told = [
        language
        for language, marks in _MARKS.items()
        if (had := _WORDS[language] & said)
        and (had & marks & ANYWHERE or len(had) >= (FEW if had & marks else max(SOME, 2 * len(ENGLISH & said) + 1)))
    ]
    if _ELIDED.search(plain):
        told.append("french")
    if "¿" in text or "¡" in text:
        told.append("spanish")
    most = max((len(_WORDS[language] & said) for language in told), default=0)
    best = [_WORDS[language] for language in told if len(_WORDS[language] & said) == most]
    return frozenset.intersection(*best) if best else frozenset()
