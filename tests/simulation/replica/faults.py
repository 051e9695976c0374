"""What goes wrong around the replicas: which of it, when, and how all of it ends."""

from collections.abc import Mapping, Sequence

from envelope.types import NodeId
from tests.simulation.replica.disk_faults import DiskFaults
from tests.simulation.replica.fault_schedule import FaultSchedule, kinds_of_all
from tests.simulation.replica.flips import Flips
from tests.simulation.replica.isr_faults import IsrFaults
from tests.simulation.replica.link_faults import LinkFaults
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.process_faults import ProcessFaults
from tests.simulation.replica.reader_faults import ReaderFaults
from tests.simulation.replica.reign_faults import ReignFaults
from tests.simulation.replica.service_world import ServiceWorld
from tests.simulation.replica.targets import Targets, names


class Faults(FaultSchedule):
    """Those of a cluster whose metadata group is a service."""

    def __init__(
        self, world: ServiceWorld, nodes: Mapping[NodeId, SimulatedNode], publishers: Sequence[str]
    ) -> None:
        self._service_world = world
        to, links = Targets(world, nodes), LinkFaults(world, list(nodes))
        disks, reigns = DiskFaults(world, to, links.moment), ReignFaults(world, to, links)
        processes = ProcessFaults(world, to, links.moment, disks)
        readers = ReaderFaults(world, to, links)
        isrs = IsrFaults(world, to, processes)
        kinds = kinds_of_all(to, processes, disks, links, publishers) | {
            "kill_isr": lambda: processes.kill(to.members()),
            "restart_follower": processes.restart_at_once,
            "cut_metadata": lambda: links.cut_metadata("cut_metadata", names(to.some())),
            "cut_leaders_metadata": lambda: links.cut_metadata("cut_leaders_metadata", names(to.leaders())),
            "disconnect": reigns.disconnect,
            "hand_over": reigns.hand_over,
            "there_and_back": reigns.there_and_back,
            "reassign": reigns.reassign,
            "exchange_readers": readers.exchange,
            "leave_and_return": readers.leave_and_return,
            "metadata_down": reigns.take_down,
            "trim": disks.trim,
            "lose_isr": isrs.lose,
            "followers_away": isrs.take_followers_away,
            "elect_uncleanly": isrs.elect,
            "flip": Flips(world, to).strike,
        }
        super().__init__(world, to, processes, kinds, world.swarm.faults)

    def end(self) -> None:
        """End every fault."""
        world = self._service_world
        if world.metadata.down:
            world.metadata.come_back()
        self.heal((world.network, world.bus.network), lambda node: True)
