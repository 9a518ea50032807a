"""Questions with a letter to choose: a hint after the first wrong answer, the explanation after the second."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from ..grade import Task
from ..grades import Failure, Spent
from ..learner import Learner

FILE = "answers.toml"
TRIES = 2  # answers that count
LETTERS = ("a", "b", "c", "d")


class Question(NamedTuple):
    """right: the letter; hint: where to look; explanation: why it is right."""

    right: str
    hint: str
    explanation: str


def letter_of(learner: Learner, name: str) -> str:
    """The letter that was chosen; Failure if there is none."""
    answer = str(learner.answers(FILE).get("questions", {}).get(name, "")).strip().lower()
    if not answer:
        raise Failure("no answer yet", "no-answer")
    if answer not in LETTERS:
        raise Failure(f"{answer!r} is no answer, expected a, b, c or d")
    return answer


def judge(learner: Learner, name: str, question: Question, habit: str = "wrong-choice") -> str:
    """The explanation of a right answer. Spent: there were too many wrong ones before."""
    answer, wrong = letter_of(learner, name), learner.tried.setdefault(name, [])
    if answer != question.right and answer not in wrong:
        wrong.append(answer)
    if len(wrong) >= TRIES:
        raise Spent(
            f"it is {question.right!r}, and {' and '.join(map(repr, wrong))} came before: no points. "
            f"{question.explanation}"
        )
    if answer != question.right:
        raise Failure(f"{answer!r} is not right: {question.hint}. One more answer counts", habit)
    return question.explanation


def questions(
    part: str, choices: Mapping[str, Question], habit: str = "wrong-choice"
) -> list[Task]:
    """A step for each question."""
    return [
        Task(part, name, partial(judge, name=name, question=question, habit=habit), ("interpret",))
        for name, question in choices.items()
    ]
