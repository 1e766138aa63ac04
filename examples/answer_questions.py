"""Fine-tunes a model that finds the answers to questions in a text of any length.

python examples/answer_questions.py bert-base-uncased train-v1.1.json dev-v1.1.json    (files in SQuAD's format)
"""

import json
import sys

import bert_keras as bk


def read(file):
    """Questions with their contexts, and the answers of each: dev files have several, and a measure counts the best."""
    with open(file, encoding="utf-8") as opened:
        paragraphs = [
            paragraph for article in json.load(opened)["data"] for paragraph in article["paragraphs"]
        ]
    pairs = [(paragraph["context"], question) for paragraph in paragraphs for question in paragraph["qas"]]
    texts = {
        "question": [question["question"] for _, question in pairs],
        "context": [context for context, _ in pairs],
    }
    names = ("text", "answer_start")
    return texts, [
        {name: [one[name] for one in question["answers"]] for name in names} for _, question in pairs
    ]


checkpoint, train, dev = sys.argv[1:]
model = bk.question_answerer(checkpoint, seq_length=384, doc_stride=128)
model.compile(learning_rate=3e-5)
model.fit(*read(train), batch_size=32, epochs=2)

questions, answers = read(dev)
print(model.evaluate(questions, answers, return_dict=True))
found = model.predict({name: column[:5] for name, column in questions.items()})
for question, answer, score in zip(questions["question"], found["answer"], found["score"]):
    print(question, "->", answer, f"({score:.2f})")
model.save("question_answerer.keras")
