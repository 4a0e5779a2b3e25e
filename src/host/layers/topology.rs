//! Which ranks are on which machine, and who does what for whom: the same on all ranks.
#![forbid(unsafe_code)]

/// The ranks of a communicator by machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Topology {
    /// The ranks of each machine, in their order; the machines in the order of their first ranks.
    machines: Vec<Vec<usize>>,
    /// Machine and place of each rank.
    places: Vec<(usize, usize)>,
    rails: usize,
}

impl Topology {
    /// From what says of each rank which machine it is on: equal for those of one machine.
    pub(crate) fn new<M: PartialEq>(machine_of: &[M]) -> Topology {
        let mut machines: Vec<Vec<usize>> = Vec::new();
        let mut places = Vec::with_capacity(machine_of.len());
        for (rank, machine) in machine_of.iter().enumerate() {
            let known = machines
                .iter()
                .position(|ranks| machine_of[ranks[0]] == *machine);
            let at = known.unwrap_or_else(|| {
                machines.push(Vec::new());
                machines.len() - 1
            });
            places.push((at, machines[at].len()));
            machines[at].push(rank);
        }
        Topology {
            rails: machines.iter().map(Vec::len).min().unwrap_or(0),
            machines,
            places,
        }
    }

    /// Whether there is something to gain: several machines, and several ranks on one.
    pub(crate) fn has_layers(&self) -> bool {
        self.machines() > 1 && self.machines() < self.ranks()
    }

    pub(crate) fn ranks(&self) -> usize {
        self.places.len()
    }

    pub(crate) fn machines(&self) -> usize {
        self.machines.len()
    }

    /// The ranks of a machine.
    pub(crate) fn machine(&self, machine: usize) -> &[usize] {
        &self.machines[machine]
    }

    /// Machine and place of a rank.
    pub(crate) fn of(&self, rank: usize) -> (usize, usize) {
        self.places[rank]
    }

    /// Places that every machine has.
    pub(crate) fn rails(&self) -> usize {
        self.rails
    }

    /// The place on a machine whose rank carries the block of a rank between that machine's ranks and the network: its
    /// own, on the rank's machine.
    pub(crate) fn carrier(&self, machine: usize, rank: usize) -> usize {
        let (home, place) = self.of(rank);
        match home == machine {
            true => place,
            false => place % self.machines[machine].len(),
        }
    }

    /// The ranks whose blocks a place of a machine carries.
    pub(crate) fn carried(&self, machine: usize, place: usize) -> Vec<usize> {
        let ranks = 0..self.ranks();
        ranks
            .filter(|rank| self.carrier(machine, *rank) == place)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_places_on_their_machines() {
        let topology = Topology::new(&["a", "b", "a", "c", "a", "b"]);
        assert_eq!(topology.machines, [vec![0, 2, 4], vec![1, 5], vec![3]]);
        assert_eq!((topology.of(4), topology.of(5)), ((0, 2), (1, 1)));
        assert_eq!((topology.rails(), topology.ranks()), (1, 6));
        assert!(topology.has_layers());
        // Every block has one carrier on every machine, which on its own is its rank.
        for machine in 0..3 {
            for rank in 0..6 {
                let place = topology.carrier(machine, rank);
                assert!(place < topology.machine(machine).len());
                if topology.of(rank).0 == machine {
                    assert_eq!(topology.machine(machine)[place], rank);
                }
                assert!(topology.carried(machine, place).contains(&rank));
            }
        }
        assert!(!Topology::new(&[1, 2, 3]).has_layers());
        assert!(!Topology::new(&[1, 1, 1]).has_layers());
    }
}
