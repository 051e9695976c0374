"""Which links a partition cuts, by its form."""

from collections.abc import Sequence
from random import Random

from tests.simulation.network import Link


def all_links(names: Sequence[str]) -> list[Link]:
    """Return every link between two of ``names``."""
    return [(one, other) for one in names for other in names if one != other]


def both_ways(there: Sequence[Link]) -> list[Link]:
    """Return these links and those back."""
    return [*there, *((other, one) for one, other in there)]


def around(inside: Sequence[str], names: Sequence[str]) -> list[Link]:
    """Cut ``inside`` off from everybody else, in both directions."""
    outside = [name for name in names if name not in inside]
    return both_ways([(one, other) for one in inside for other in outside])


def one_way(rng: Random, names: Sequence[str]) -> list[Link]:
    """Cut any links, each in one direction."""
    links = all_links(names)
    return rng.sample(links, rng.randint(1, len(links))) if links else []


def ring(rng: Random, names: Sequence[str]) -> list[Link]:
    """Let everybody reach a majority, and no two the same one: their neighbours on a ring."""
    order = list(names)
    rng.shuffle(order)
    reach = len(order) // 4
    place = {name: number for number, name in enumerate(order)}

    def apart(link: Link) -> int:
        steps = abs(place[link[0]] - place[link[1]])
        return min(steps, len(order) - steps)

    return [link for link in all_links(names) if apart(link) > reach]


def bridge(rng: Random, names: Sequence[str]) -> list[Link]:
    """Make two halves that both reach one, and not each other."""
    order = list(names)
    rng.shuffle(order)
    rest = order[1:]
    one, other = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    return both_ways([(a, b) for a in one for b in other])
