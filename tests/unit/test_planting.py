"""A planted bug counts as found when a walk finds it, and not when the plant fails by itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.planting import BrokenPlant, Plant, found_by_walk


class Shelf:
    """What the plants of these tests are put into."""

    def __init__(self) -> None:
        self.books = ["a"]

    @property
    def count(self) -> int:
        return len(self.books)

    def put(self, book: str) -> None:
        self.books.append(book)

    async def lend(self, book: str) -> None:
        self.books.remove(book)

    def listed(self) -> Iterator[str]:
        yield from self.books

    async def told(self) -> AsyncIterator[str]:
        for book in self.books:
            yield book


async def walk() -> None:
    shelf = Shelf()
    shelf.put("b")
    assert shelf.count == 2, "a book is lost"
    await shelf.lend("a")
    assert list(shelf.listed()) == [each async for each in shelf.told()] == ["b"], "another book is lent"


async def lend_nothing(_self: Shelf, _book: str) -> None:
    """It stays."""


def list_nothing(_self: Shelf) -> Iterator[str]:
    yield from ()


async def tell_nothing(_self: Shelf) -> AsyncIterator[str]:
    for book in ():  # type: ignore[var-annotated]
        yield book


def with_typing_errors(shelf: Shelf, book: str) -> None:
    shelf.boks.append(book)  # type: ignore[attr-defined]


def of_another_shape(shelf: Shelf, book: str) -> None:
    _place, _row = shelf.books
    shelf.books.append(book)


async def in_a_task(shelf: Shelf, book: str) -> None:
    shelf.boks.remove(book)  # type: ignore[attr-defined]


def step_by_step(shelf: Shelf) -> Iterator[str]:
    yield from shelf.boks  # type: ignore[attr-defined]


def set_to(name: str, value: object) -> Plant:
    return lambda patch: patch.setattr(Shelf, name, value)


@pytest.mark.parametrize(
    "plant",
    [
        set_to("put", lambda self, book: None),
        set_to("count", property(lambda self: 1)),
        set_to("lend", lend_nothing),
        set_to("listed", list_nothing),
        set_to("told", tell_nothing),
        lambda patch: patch.setattr(f"{__name__}.Shelf.put", lambda self, book: None),
    ],
)
async def test_a_bug_is_found_by_the_assertion_of_a_walk_and_is_gone_afterwards(plant: Plant) -> None:
    with found_by_walk(plant):
        await walk()
    await walk()


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (set_to("put_away", lambda self, book: None), "no put_away any more"),
        (set_to("put", lambda self: None), "takes 1 positional argument"),
        (set_to("put", with_typing_errors), "no attribute 'boks'"),
        (set_to("put", of_another_shape), "not enough values"),
        (set_to("lend", in_a_task), "no attribute 'boks'"),
        (set_to("lend", lambda self, book: None), "can't be used in 'await' expression"),
        (set_to("listed", step_by_step), "no attribute 'boks'"),
    ],
)
async def test_a_plant_that_does_not_fit_any_more_is_no_bug_that_was_found(plant: Plant, says: str) -> None:
    with pytest.raises(BrokenPlant, match=says), found_by_walk(plant, AttributeError, TypeError, ValueError):
        await walk()


async def walk_told_otherwise() -> None:
    """What fails is told as something else."""
    try:
        await walk()
    except AttributeError as failure:
        raise AssertionError("a step raised") from failure
    except AssertionError as failure:
        raise ExceptionGroup("several", [failure, TypeError("of another class")]) from None


async def test_nor_is_one_whose_error_stands_behind_another() -> None:
    with pytest.raises(BrokenPlant, match="boks"), found_by_walk(set_to("put", with_typing_errors)):
        await walk_told_otherwise()
    plant = set_to("put", lambda self, book: None)
    with pytest.raises(BrokenPlant, match="of another class"), found_by_walk(plant, ExceptionGroup):
        await walk_told_otherwise()


async def test_nor_is_one_of_which_a_part_is_never_called() -> None:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Shelf, "put", lambda self, book: None)
        patch.setattr(Shelf, "told", tell_nothing)

    with pytest.raises(BrokenPlant, match="never called: told"), found_by_walk(plant):
        await walk()


async def test_a_bug_that_no_walk_meets_is_not_found() -> None:
    with pytest.raises(pytest.fail.Exception, match="is not found"), found_by_walk(set_to("count", 2)):
        await walk()


async def test_the_walk_has_to_say_what_is_asked_for() -> None:
    plant = set_to("put", lambda self, book: None)
    with pytest.raises(pytest.fail.Exception, match="does not say"), found_by_walk(plant, says="another book"):
        await walk()
