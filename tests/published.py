"""Small files of the published benchmarks' layouts."""

import json
import re

from keras_albert.data.glue import GLUE

# The first line of each file, as the benchmark has it.
HEADERS = {
    "SST-2": "sentence label",
    "MRPC": "Quality|#1 ID|#2 ID|#1 String|#2 String",
    "STS-B": "index genre filename year old_index source1 source2 "
    "sentence1 sentence2 score",
    "QQP": "id qid1 qid2 question1 question2 is_duplicate",
    "MNLI": "index promptID pairID genre sentence1_binary_parse "
    "sentence2_binary_parse sentence1_parse sentence2_parse sentence1 "
    "sentence2 label1 gold_label",
    "QNLI": "index question sentence label",
    "RTE": "index sentence1 sentence2 label",
    "WNLI": "index sentence1 sentence2 label",
}
# Those of the others are as above, without the labels behind the sentences.
TEST_HEADERS = {
    "CoLA": "index sentence",
    "SST-2": "index sentence",
    "MRPC": "index|#1 ID|#2 ID|#1 String|#2 String",
    "QQP": "id question1 question2",
    "AX": "index sentence1 sentence2",
} | {
    task: re.sub(r" (label1|label|score)\b.*", "", HEADERS[task])
    for task in ("STS-B", "MNLI", "QNLI", "RTE", "WNLI")
}


def tabbed(header):
    return header.replace("|" if "|" in header else " ", "\t")


def write(folder, path, content):
    """A file and the folders above it."""
    path = folder / path
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    return path


def glue_file(folder, task, split, rows=6):
    """A small file of the layout; every cell says where it stands."""
    settings = GLUE[task]
    file = settings.splits[split]
    headers = HEADERS if file.submission is None else TEST_HEADERS
    header = file.header or tabbed(headers[task]).split("\t")
    labels = settings.labels or ("0", "3.75", "5.000")
    lines = [] if file.header else ["\t".join(header)]
    for i in range(rows):
        cells = [f"{name} {i}" for name in header]
        if settings.index in header:
            cells[header.index(settings.index)] = str(100 + i)
        if settings.columns.label in header:
            column = header.index(settings.columns.label)
            cells[column] = labels[i % len(labels)]
        lines.append("\t".join(cells))
    write(folder, file.path, "\n".join(lines) + "\n")


# RACE.


def passage(name="p", count=2, **changes):
    """A passage as RACE has it."""
    letters = "DCBA"
    return {
        "id": f"{name}.txt",
        "article": f"The article of {name}.",
        "questions": [f"{name}: which is {i}?" for i in range(count)],
        "options": [[f"{i}{x}" for x in "wxyz"] for i in range(count)],
        "answers": [letters[i % 4] for i in range(count)],
        **changes,
    }


def race_files(folder, split="dev", middle=(), high=()):
    """Passages or bytes as files 0.txt, 1.txt ... of the two schools."""
    for level, passages in (("middle", middle), ("high", high)):
        (folder / split / level).mkdir(parents=True, exist_ok=True)
        for number, content in enumerate(passages):
            if isinstance(content, dict):
                content = json.dumps(content).encode()
            (folder / split / level / f"{number}.txt").write_bytes(content)
    return folder
