"""Scripts of examples/small that make data: texts, questions, splits."""

import json
import random
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.any_backend

FOLDER = Path(__file__).parents[2] / "examples" / "small"
MEASURED = "an utterly charming film that will not outstay ."  # eight words
REVIEWS = {
    "train/pos/0_9.txt": "Seen twice.<br /><br />A  second\nparagraph.",
    "train/unsup/0_0.txt": "Seen twice.<br /><br />A second paragraph.",
    "train/unsup/1_0.txt": "I quote: an UTTERLY charming film, that will not "
    "outstay its welcome!",
    "train/unsup/2_0.txt": "One utterly charming film that will not outstay.",
    "test/neg/0_1.txt": "The first one<br>is held out.",
    **{f"test/neg/{i}_1.txt": f"Number {i} is not read." for i in range(1, 50)},
    "test/pos/0_9.txt": "Seen twice.<br />A second paragraph.",
}
ROWS = """sentence\tlabel
a dull film with a fine end \t0
a fine end \t1
dull \t0
the best film \t1
film \t1
two of us \t0
not for me \t0
one of them \t1
one too many \t0
one \t1
"""


def run(script, *arguments):
    command = [sys.executable, FOLDER / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def reviews(tmp_path):
    """The command for a small archive of reviews."""
    for name, text in REVIEWS.items():
        path = tmp_path / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    table = tmp_path / "dev.tsv"
    table.write_text(f"sentence\tlabel\n{MEASURED}\t1\n")
    return [
        *("reviews.py", "--reviews", tmp_path / "aclImdb"),
        *("--without", table, "--output", tmp_path / "text"),
    ]


def test_reviews(reviews, tmp_path):
    """Each once, without those that quote eight words of what is measured."""
    done = run(*reviews)
    assert done.returncode == 0, done.stderr
    train = (tmp_path / "text" / "train.txt").read_text()
    assert train == (
        "Seen twice.\nA second paragraph.\n\n"
        "One utterly charming film that will not outstay.\n"
    )
    held_out = (tmp_path / "text" / "held-out.txt").read_text()
    assert held_out == "The first one\nis held out.\n"
    assert "train.txt: 2 of 4 reviews" in done.stdout
    # Of 51 test reviews two are chosen; the second is one of train.txt.
    assert "held-out.txt: 1 of 2 reviews" in done.stdout


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_of_the_reviews_is_missing(part, reviews, tmp_path):
    (tmp_path / "aclImdb" / part).rename(tmp_path / "other")
    done = run(*reviews)
    assert done.returncode == 1
    assert "Unpack aclImdb_v1.tar.gz" in done.stderr


def test_another_table(reviews, tmp_path):
    """Its first line would be taken for a header."""
    (tmp_path / "dev.tsv").write_text(f"{MEASURED}\t1\n")
    done = run(*reviews)
    assert done.returncode == 1
    assert "is no table of SST-2: it begins with 'an utterly" in done.stderr


def test_split_by_sentences(tmp_path):
    """Of a held-out sentence only what another one has, too, is learned."""
    table = tmp_path / "train.tsv"
    table.write_text(ROWS)
    done = run("sentences_split.py", table, tmp_path / "SST-2")
    assert done.returncode == 0, done.stderr
    header, *rows = ROWS.splitlines()
    held_out = (tmp_path / "SST-2" / "dev.tsv").read_text().splitlines()
    # The longest one and, of six, the last one of the same length.
    ends = ["a dull film with a fine end \t0", "one too many \t0"]
    assert held_out == [header, *ends]
    # "film" and "one" are parts of learned sentences, too.
    train = (tmp_path / "SST-2" / "train.tsv").read_text().splitlines()
    parts = ["a fine end \t1", "dull \t0"]
    assert train == [header, *(r for r in rows if r not in ends + parts)]


LONG = "This paragraph has more than four hundred characters. " * 8
LEFT_OUT = 501  # articles that only make the collections large enough
ARTICLES = {
    "wikinews/AA/wiki_00": "\n".join(
        json.dumps({"title": title, "text": text}, ensure_ascii=False)
        for title, text in (
            ("A &quot;title&quot;", f"A caption\n{LONG}\u2028here\n{LONG}"),
            ("Too short", "An article of forty-one characters, no more"),
            ("Known", f"It was {MEASURED} {LONG}"),
        )
    ),
    "reuters/reut2-000.sgm": (
        f"<REUTERS A><TITLE>A &lt;B> TITLE</TITLE><BODY>One.\n    {LONG}\n"
        f"goes\xfa on. Reuter\n&#3;</BODY></REUTERS>\n<REUTERS B></REUTERS>"
        f"<REUTERS C><BODY>{LONG}{'1   2' * 21}</BODY></REUTERS>"
        f"<REUTERS D><BODY>{LONG}{'1   2' * 20}</BODY></REUTERS>"
        "<REUTERS E><BODY>Too short.</BODY></REUTERS>"
    ),
    "bbc/tech/001.txt": "Title\n\nA  text.\n",
    "bbc/tech/002.txt": "Title\n\nA text.",
    "bbc/tech/003.txt": "\n",
    **{f"bbc/sport/{i}.txt": f"Sport {i}" for i in range(LEFT_OUT)},
}


@pytest.fixture
def articles(tmp_path):
    """The command for three small collections."""
    for name, text in ARTICLES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        encoding = "latin-1" if name.endswith("sgm") else "utf-8"
        path.write_text(text, encoding)
    table = tmp_path / "dev.tsv"  # eight words in one cell, and in two
    table.write_text(f"1\t{MEASURED}\nThis paragraph has more\tthan four\n")
    squad = tmp_path / "dev.json"
    context = {"context": "Nothing is known of these eight words here."}
    squad.write_text(json.dumps({"data": [{"paragraphs": [context]}]}))
    folders = [
        part
        for name in ("wikinews", "reuters", "bbc")
        for part in (f"--{name}", tmp_path / name)
    ]
    known = ("--without", table, squad)
    return ["articles.py", *folders, "--output", tmp_path / "text", *known]


def parts(folder):
    return {
        name: (folder / f"{name}.txt").read_text("utf-8").strip().split("\n\n")
        for name in ("held-out", "train")
    }


def test_articles(articles, tmp_path):
    """Titles and paragraphs, no tables, nothing short, nothing twice."""
    done = run(*articles)
    assert done.returncode == 0, done.stderr
    text = parts(tmp_path / "text")
    assert len(text["held-out"]) == 500
    both = text["held-out"] + text["train"]
    others = {f"Sport {i}" for i in range(LEFT_OUT)}
    long = LONG.strip()
    assert others < {*both}
    assert sorted({*both} - others) == [
        f'A "title"\n{long} here\n{long}',
        f"A <B> TITLE\nOne.\n{long} goes\xfa on.",
        " ".join(f"{LONG}{'1 2' * 20}".split()),
        "Title\nA text.",
    ]
    assert len(both) == LEFT_OUT + 4
    assert "wikinews: 1 of 2 articles" in done.stdout
    assert "reuters: 2 of 2 articles" in done.stdout
    assert f"bbc: {LEFT_OUT + 1} of {LEFT_OUT + 2} articles" in done.stdout


def test_articles_are_in_the_same_random_order(articles, tmp_path):
    run(*articles)
    first = parts(tmp_path / "text")
    run(*articles)
    assert parts(tmp_path / "text") == first
    assert first["held-out"] != sorted(first["held-out"])


def test_articles_of_squad_are_known(articles, tmp_path):
    """The contexts that measure a model are left out like sentences."""
    (tmp_path / "bbc/tech/001.txt").write_text(
        "Title\nNothing is known of these EIGHT words here, he said."
    )
    done = run(*articles)
    assert f"bbc: {LEFT_OUT + 1} of {LEFT_OUT + 2} articles" in done.stdout


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("reuters/reut2-000.sgm", "", "files reut2-*.sgm of Reuters-21578."),
        ("wikinews/AA/wiki_00", "<doc>", "is not of wikiextractor --json."),
        ("dev.tsv", "few words", "has no cell with eight words in a row."),
    ],
)
def test_bad_articles(name, text, problem, articles, tmp_path):
    (tmp_path / name).write_text(text)
    done = run(*articles)
    assert done.returncode == 1
    assert problem in done.stderr
    assert not (tmp_path / "text").exists()


def test_too_few_articles(articles, tmp_path):
    for i in range(5):
        (tmp_path / f"bbc/sport/{i}.txt").unlink()
    done = run(*articles)
    assert done.returncode == 1
    assert "500 articles are too few, as 500 are held out" in done.stderr


@pytest.fixture(scope="module")
def cloze():
    return runpy.run_path(str(FOLDER / "cloze.py"))


def words_of(cloze, sentence):
    found = cloze["WORD"].finditer(sentence)
    return [cloze["Word"](each[0], *each.span()) for each in found]


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            "Then Mary Ann Evans moved from Paris to the old town of Rome.",
            ["name Mary Ann Evans", "place Paris", "phrase old town"]
            + ["name Rome"],
        ),
        ("They left on 3 March 1987, with us.", ["date 3 March 1987"]),
        ("It was so in 1987, or in May.", ["date 1987", "date May"]),
        ("Of 25 million dollars 1.5 went.", ["number 25 million dollars 1.5"]),
        (
            "They went to Paris, London and Rome.",
            ["name Paris", "name London", "name Rome"],
        ),
        ("The one is The Other, by the old man.", ["phrase old man"]),
        ("We saw the big old red brick house.", ["phrase big old red brick"]),
    ],
)
def test_answers(sentence, expected, cloze):
    words = words_of(cloze, sentence)
    found = [
        f"{kind} {sentence[words[first].begin : words[stop - 1].end]}"
        for kind, first, stop in cloze["answers"](words, sentence)
    ]
    assert found == expected


def test_contexts(cloze):
    """As many sentences as fit; one that never does is left out."""
    a, b, d = "a " * 60, "b " * 50, "d " * 111
    assert [*cloze["contexts"]([a, b, "c", d, "e"])] == [[a, b], ["c"], ["e"]]


def test_question(cloze):
    """Words near the answer, some left out, the others moved a little."""
    words = words_of(cloze, " ".join(f"w{i}" for i in range(40)))
    answer = cloze["Answer"]("place", 20, 22)
    draw = random.Random(0)
    counts, moves = set(), set()
    for _ in range(300):
        question = cloze["question_of"](words, answer, draw)
        if question is None:  # fewer than three words were left
            continue
        assert question.startswith("where w")
        kept = [int(each[1:]) for each in question[6:-1].split()]
        assert {*kept} <= {*range(10, 20), *range(22, 32)}
        assert len({*kept}) == len(kept) >= 3
        counts.add(len(kept))
        moves |= {i - sorted(kept).index(w) for i, w in enumerate(kept)}
    assert counts >= {*range(4, 16)}
    assert {-2, 2} <= moves <= {*range(-3, 4)}
    assert (
        cloze["question_of"](words[:4], answer._replace(first=1), draw) is None
    )


def test_kinds_of_answers(cloze):
    """An answer is drawn with the weights of its kind, a name before a date."""
    draw = random.Random(0)
    sentence = "Later they had left her with Mary, but only in May, too."
    drawn = [
        question["answers"][0]["text"]
        for _ in range(1000)
        for question in cloze["ask"]([sentence], draw)
    ]
    assert {*drawn} == {"Mary", "May"}
    # 28 / 37 is 0.757; the standard deviation of such a share is 0.014.
    assert drawn.count("Mary") / len(drawn) == pytest.approx(28 / 37, abs=0.05)
    assert not cloze["ask"](["They left her with Mary in May."], draw)


def test_cloze(cloze, tmp_path):
    """Each sentence has one answer, of a kind that its question word names."""
    kinds = {
        "3 March 1987": ("They left on 3 March 1987", "date"),
        "25 million dollars": ("they gave 25 million dollars", "number"),
        "New York": ("they were in New York", "place"),
        "Mary Ann Evans": ("so had Mary Ann Evans", "name"),
        "brave men": ("they were seen by brave men", "phrase"),
    }
    sentences = [
        f"They had been there before, and {end} too."
        for end, _ in kinds.values()
    ]
    paragraph = " ".join(sentences)
    path = tmp_path / "articles.txt"
    path.write_text("\n\n".join([f"A title\n{paragraph}"] * 51))
    command = ["cloze.py", "--input", path, "--output"]
    for folder in ("first", "second"):
        done = run(*command, tmp_path / folder)
        assert done.returncode == 0, done.stderr
    texts = {
        name: (tmp_path / "first" / f"{name}-v1.1.json").read_text()
        for name in ("train", "dev")
    }
    again = (tmp_path / "second" / "train-v1.1.json").read_text()
    assert again == texts["train"]
    data = {name: json.loads(text)["data"] for name, text in texts.items()}
    assert (len(data["train"]), len(data["dev"])) == (49, 2)
    asked, ids, counts = set(), [], set()
    for article in data["train"]:
        assert article["title"] == "A title"
        [found] = article["paragraphs"]
        assert found["context"] == paragraph
        about = set()
        for question in found["qas"]:
            [answer] = question["answers"]
            text = answer["text"]
            assert paragraph[answer["answer_start"] :].startswith(text)
            possible = cloze["QUESTION_WORDS"][kinds[text][1]]
            assert question["question"].startswith(possible)
            about.add(text)
            ids.append(question["id"])
        assert len(about) == len(found["qas"])  # about different sentences
        counts.add(len(about))
        asked |= about
    assert asked == {*kinds}
    assert max(counts) == 3
    assert len({*ids}) == len(ids)


def test_no_questions(tmp_path):
    """A text without blank lines is a single article, which is held out."""
    path = tmp_path / "novel.txt"
    path.write_text("A title\nThey had been there before, and so had Mary.")
    done = run("cloze.py", "--input", path, "--output", tmp_path / "cloze")
    assert done.returncode == 1
    assert "gives no questions for train. Give a text of" in done.stderr
    assert not (tmp_path / "cloze").exists()


@pytest.fixture
def paraphrases(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)  # it imports cloze.py
    return runpy.run_path(str(FOLDER / "paraphrases.py"))


@pytest.mark.parametrize(
    ("contexts", "kind", "found"),
    [
        # The beginnings of "developed", "engines" and "Paris" are there.
        (
            [["No one.", "For Paris, Mary Evans was developing an engine."]],
            *("name", (3, 0, 19)),
        ),
        ([["For Paris, Mary Evans was developing it."]], "name", None),
        ([["For Paris, Mary Evansson developed an engine."]], "name", None),
        ([["Mary Evans developed an engine in Paris."]], "number", None),
        (
            [["Mary Evans developed loud engines in Paris."]],
            *("number", (4, 0, 0)),
        ),
        # The sentence with the most of these words.
        (
            [["Mary Evans developed an engine in Paris."]]
            + [["Today Mary Evans develops loud engines in Paris."]],
            *("name", (4, 1, 6)),
        ),
    ],
)
def test_the_same_in_other_words(contexts, kind, found, paraphrases):
    words = paraphrases["words_of"](
        "Then Mary Evans developed loud engines, all of them, in Paris."
    )
    answer = paraphrases["Answer"](kind, 1, 3)
    texts = dict(enumerate(map(paraphrases["_sentences"], contexts)))
    place = paraphrases["find"]("Mary Evans", words, answer, texts)
    assert place == found


def test_too_small_a_share(paraphrases):
    """Three of nine words, less than 35 %, are the same by chance."""
    rest = [letter * 3 for letter in "abcdefghi"]
    for count, found in ((9, None), (8, (3, 0, 0))):
        words = paraphrases["words_of"](
            " ".join(["Then", "Mary", *rest[:count]])
        )
        answer = paraphrases["Answer"]("name", 1, 2)
        texts = {0: paraphrases["_sentences"](["Mary has aaa bbb ccc."])}
        place = paraphrases["find"]("Mary", words, answer, texts)
        assert place == found


def test_as_many_questions_of_the_other_kind(paraphrases):
    """Whole articles are drawn, until they have at least as many questions."""

    def asked(title, count):
        return {"title": title, "paragraphs": [{"qas": [{}] * count}]}

    data = [asked("a", 3), asked("b", 2)]
    others = {"data": [asked(n, 2) for n in range(9)]}
    draw = random.Random(0)
    drawn = [*paraphrases["as_many"](data, others, draw)]
    assert len({each["title"] for each in drawn}) == 3
    assert [*paraphrases["as_many"]([], others, draw)] == []


def test_paraphrases(paraphrases, tmp_path):
    """Each context is asked about in the words of another one, or a title."""
    first = "Yesterday Mary Evans developed loud engines in Paris."
    second = "In Paris the loud engines of Mary Evans are developed."
    filler = "Nothing else is known. " * 25
    article = f"Now Mary Evans developed engines in Paris\n{first}\n{filler}\n"
    path = tmp_path / "articles.txt"
    path.write_text("\n\n".join([article + second] * 51))
    command = "cloze.py", "--input", path, "--output", tmp_path / "cloze"
    assert run(*command).returncode == 0
    command = "paraphrases.py", "--input", path, "--cloze", tmp_path / "cloze"
    done = run(*command, "--output", tmp_path / "news")
    assert done.returncode == 0, done.stderr
    data = json.loads((tmp_path / "news" / "train-v1.1.json").read_text())
    made = data["data"][:49]
    drawn = data["data"][49:]
    of_cloze = (tmp_path / "cloze" / "train-v1.1.json").read_text()
    contexts = json.loads(of_cloze)["data"][0]["paragraphs"]
    assert [p["context"] for p in drawn[0]["paragraphs"]] == [
        p["context"] for p in contexts
    ]
    questions_of = paraphrases["questions_of"]
    ids = [q["id"] for each in data["data"] for q in questions_of(each)]
    assert len({*ids}) == len(ids)
    answers = set()
    for paragraph in (p for each in made for p in each["paragraphs"]):
        assert 1 <= len(paragraph["qas"]) <= 3
        for question in paragraph["qas"]:
            [answer] = question["answers"]
            begin, text = answer["answer_start"], answer["text"]
            assert paragraph["context"][begin:].startswith(text)
            answers.add(text)
            # "are" and "of" are in the second sentence alone.
            words = question["question"][:-1].split()[1:]
            if paragraph["context"].endswith(second):
                assert not {"are", "of", "the"} & {*words}
    assert answers == {"Mary Evans", "Paris", "loud engines"}
    again = run(*command, "--output", tmp_path / "again")
    assert again.returncode == 0
    for part in ("train", "dev"):
        name = f"{part}-v1.1.json"
        texts = [(tmp_path / f / name).read_text() for f in ("news", "again")]
        assert texts[0] == texts[1]


def test_paraphrases_without_the_other_questions(tmp_path):
    path = tmp_path / "articles.txt"
    path.write_text("A title\nA text.")
    done = run(
        *("paraphrases.py", "--input", path, "--cloze", tmp_path / "none"),
        *("--output", tmp_path / "news"),
    )
    assert done.returncode == 1
    assert "Give the output of cloze.py." in done.stderr


@pytest.fixture
def overlap(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)  # it imports cloze.py
    return runpy.run_path(str(FOLDER / "overlap.py"))


@pytest.mark.parametrize(
    ("text", "pair", "shares", "numbers"),
    [
        # Of five and four words three are shared, and of four and three pairs
        # of neighbours one.
        ("A b, c 1 2", "x a B 1.", (0.5, 0.7, 0.2), False),
        ("a b c 2", "C 2 a b", (1, 1, 0.6), True),
        ("a b", "c d", (0, 0, 0), True),
        ("a 1", "b 1.5", (0, 0, 0), False),
    ],
)
def test_labels_of_shared_words(text, pair, shares, numbers, overlap):
    """Each share that is passed is a label: 3 of 5 words are not above 0.6."""
    found = overlap["labels"](text, pair)
    assert ("numbers" in found) == numbers
    for name, all_shares, most in zip(
        ("first", "second", "neighbours"),
        (*[overlap["SHARES_OF_WORDS"]] * 2, overlap["SHARES_OF_NEIGHBOURS"]),
        shares,
        strict=True,
    ):
        passed = [f"{name} {share}" for share in all_shares if share <= most]
        assert [x for x in found if x.startswith(name)] == passed


def test_pairs_of_sentences(overlap):
    """They share two rare words and a fifth of all; or are of one sentence."""
    sentences = [
        "Today the engine of Mary Evans was loud in the whole street.",
        "Nobody in the street liked the loud engine of Mary Evans today.",
        "Nobody was in the street today, and nobody liked the noise there.",
        "Mary Evans and 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20.",
    ]
    found = [*dict.fromkeys(overlap["neighbours"](sentences))]
    assert (sentences[0], sentences[1]) in found
    assert all(sentences[3] not in pair for pair in found)
    draw = random.Random(0)
    pairs = overlap["pairs_of"](sentences, 2 * len(found), draw)
    assert len(pairs) == 2 * len(found)
    assert {*found} <= {*pairs}
    for pair in {*pairs} - {*found}:  # both are changes of one sentence
        kept = [
            sum(word in sentence.split() for word in text.split())
            for sentence in sentences[:3]
            for text in pair
        ]
        assert max(map(min, zip(kept[::2], kept[1::2], strict=True))) >= 5
    assert len({*pairs}) > len(found)
    assert overlap["pairs_of"]([], 2, draw) == []


def test_changed_sentences(overlap):
    """At most half of the words differ; new ones are of the other sentence."""
    words, others = [f"a{i}" for i in range(20)], [f"b{i}" for i in range(9)]
    kinds = set()
    for seed in range(200):
        draw = random.Random(seed)
        found = overlap["changed"](" ".join(words), " ".join(others), draw)
        found = found.split()
        kept = [word for word in found if word in words]
        assert {*found} <= {*words, *others}
        assert len({*kept}) == len(kept) >= 10
        kinds |= {
            *(["replaced"] if {*found} & {*others} else []),
            *(["moved"] if kept != sorted(kept, key=words.index) else []),
            *(["left out"] if len(found) < 20 else []),
            *(["unchanged"] if found == words else []),
        }
    assert kinds == {"replaced", "moved", "left out", "unchanged"}


def test_too_few_sentences_for_pairs(tmp_path):
    path = tmp_path / "articles.txt"
    path.write_text("A title\nA text.")
    command = "overlap.py", "--input", path, "--output", tmp_path / "pairs"
    done = run(*command)
    assert done.returncode == 1
    assert "gives 0 pairs of sentences for train.jsonl" in done.stderr


@pytest.fixture
def review_sentences(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)  # it imports reviews.py
    return runpy.run_path(str(FOLDER / "review_sentences.py"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "It's good (I didn't sleep).",
            "it 's good ( i did n't sleep ) .",
        ),
        ('Well... "we\'ll see"--no!', 'well ... " we \'ll see " -- no !'),
    ],
)
def test_as_in_sst(text, expected, review_sentences):
    assert review_sentences["as_in_sst"](text) == expected


def test_sentences_of_rated_reviews(reviews, tmp_path):
    """Those of 4 to 35 words, without reviews that quote what is measured."""
    for name, text in (
        (
            "train/neg/5_1.txt",
            "A dull and slow film. Far too short.<br /><br />No",
        ),
        ("test/pos/6_9.txt", f"{'so ' * 35}good. It's a fine film."),
    ):
        path = tmp_path / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    table, output = tmp_path / "dev.tsv", tmp_path / "sentences.jsonl"
    options = "--without", table, "--output", output
    command = ["review_sentences.py", "make", *options, "--reviews"]
    done = run(*command, tmp_path / "aclImdb")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert {"sentence": "a dull and slow film .", "rating": 0} in rows
    assert {"sentence": "it 's a fine film .", "rating": 1} in rows
    texts = [row["sentence"] for row in rows]
    assert not any("too short" in text or "so so" in text for text in texts)
    assert not any(MEASURED.lower() in text for text in texts)
    done = run(*command, tmp_path / "none")
    assert done.returncode == 1 and "Unpack aclImdb_v1.tar.gz" in done.stderr


def test_chosen_sentences(review_sentences):
    """The label is the rating, and sure; equally many of both labels."""
    rows = [
        {"sentence": f"{rating}{n}", "rating": rating, "prediction": label}
        | {"score": score}
        for rating in (0, 1)
        for label in "01"
        for score in (0.59, 0.6, 0.9)
        for n in range(5 if rating else 3)
    ]
    chosen = review_sentences["chosen_rows"](iter(rows))
    labels = [row["label"] for row in chosen]
    assert len(chosen) == 12 and labels.count("0") == 6
    assert all(row["sentence"][0] == row["label"] for row in chosen)
    # In random order, not one label after the other.
    assert labels not in (sorted(labels), sorted(labels, reverse=True))


def test_linear_models_of_chosen_sentences(tmp_path):
    """Words that only the chosen sentences have are learned from them."""
    (tmp_path / "SST-2").mkdir()
    for name, rows in (
        ("train", ["good film\t1", "bad film\t0"] * 4),
        ("dev", ["lovely\t1", "awful\t0", "good\t1", "bad\t0"]),
    ):
        text = "\n".join(["sentence\tlabel", *rows]) + "\n"
        (tmp_path / "SST-2" / f"{name}.tsv").write_text(text)
    chosen = [
        {"sentence": f"{word} film", "label": label}
        for word, label in (("lovely", "1"), ("awful", "0"))
    ]
    path = tmp_path / "chosen.jsonl"
    path.write_text("\n".join(map(json.dumps, chosen)) + "\n")
    command = "review_sentences.py", "linear", "--chosen", path
    done = run(*command, "--sst", tmp_path / "SST-2")
    assert done.returncode == 0, done.stderr
    assert "SST-2: accuracy 0.750" in done.stdout
    assert "both: accuracy 1.000" in done.stdout


def test_split_of_squad(tmp_path):
    path = tmp_path / "train-v1.1.json"
    path.write_text(json.dumps({"data": [{"title": n} for n in range(12)]}))
    done = run("squad_split.py", path, tmp_path / "split")
    assert done.returncode == 0, done.stderr
    found = {
        name: [
            article["title"]
            for article in json.loads(
                (tmp_path / "split" / f"{name}-v1.1.json").read_text()
            )["data"]
        ]
        for name in ("train", "dev")
    }
    assert found["dev"] == [1, 6, 10]
    assert found["train"] == [0, 2, 3, 4, 5, 7, 8, 9, 11]


def test_more_questions(tmp_path):
    """Those whose paragraph a dev context repeats are left out."""
    known = "The fox sold two old hens to the farmer of the barn."

    def paragraph(context, *answers):
        texts = [{"text": each, "answer_start": 0} for each in answers]
        question = {"id": context[:5], "question": "Who?", "answers": texts}
        return {"context": context, "qas": [question]}

    def write(name, *paragraphs):
        article = {"title": name, "paragraphs": paragraphs}
        content = {"version": "1.1", "data": [article]}
        (tmp_path / name).write_text(json.dumps(content))
        return str(tmp_path / name)

    train = write("train.json", paragraph("One hen", "One"))
    dev = write("dev.json", paragraph(known, "The fox", "fox"))
    more = write(
        "more.json",
        paragraph("Later, THE fox sold two old hens, to the farmer.", "Later"),
        paragraph("A goose flew", "A goose", "goose"),
    )
    output = tmp_path / "out"
    given = ["--train", train, "--more", more, "--without", dev]
    run("more_questions.py", *given, "--output", output)
    articles = json.loads((output / "train-v1.1.json").read_text())["data"]
    found = [each for article in articles for each in article["paragraphs"]]
    assert found == [
        paragraph("One hen", "One"),
        paragraph("A goose flew", "A goose"),
    ]
    assert (output / "dev-v1.1.json").read_text() == Path(dev).read_text()


def test_parts_of_measure():
    """Each is written once, and those that README.md runs are there."""
    script = (FOLDER / "measure.sh").read_text()
    names = re.findall(r"^(\w+)\(\) \{", script, re.MULTILINE)
    assert len({*names}) == len(names) > 20
    readme = (FOLDER / "README.md").read_text()
    told = re.findall(r"sh examples/small/measure\.sh ([\w ]+)", readme)
    assert len(told) > 4
    assert {name for each in told for name in each.split()} <= {*names}
    checked = subprocess.run(["sh", "-n", FOLDER / "measure.sh"])
    assert checked.returncode == 0
