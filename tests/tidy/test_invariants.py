"""Every invariant is stated once, and asserted or held by a test; the page is what is stated."""

from collections import Counter

from tests.tidy import invariants_page


def test_the_page_is_what_the_code_says() -> None:
    assert invariants_page.PAGE.read_text() == invariants_page.render(), (
        "run: python -m tests.tidy.invariants_page"
    )


def test_every_invariant_is_stated_once() -> None:
    stated = Counter((one.package, one.id) for one in invariants_page.stated())
    assert stated == Counter(invariants_page.named()), "stated twice, or named and stated nowhere"


def test_every_invariant_is_asserted_or_names_the_test_that_holds_it() -> None:
    tests = invariants_page.tests_by_name()
    for one in invariants_page.stated():
        assert one.asserted or one.tests, f"{one.owner}: {one.id} is asserted nowhere and names no test"
        for name in one.tests:
            assert len(tests[name]) == 1, f"{one.owner}: {one.id} names {name}, which is {tests[name]}"
