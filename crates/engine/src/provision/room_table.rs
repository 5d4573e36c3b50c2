//! Finds the machines that hold pods, without a look at each: there are thousands of machines, and few amounts of each resource.
//!
//! A room is what a machine has left for pods, and a load what pods ask for together; both have one number for each resource. Rooms are
//! numbered in an order of the caller's, so the first room that holds a load is the best one.

use fixedbitset::FixedBitSet;
use smallvec::SmallVec;

/// The number of bits in a block of a set.
const BITS: usize = usize::BITS as usize;

/// Rooms by what they have of each resource.
#[derive(Clone, Debug)]
pub(super) struct RoomTable {
    all: FixedBitSet,
    /// By resource.
    amounts: Vec<Amounts>,
}

/// What rooms have of one resource.
#[derive(Clone, Debug)]
struct Amounts {
    /// The different amounts, the least first.
    different: Vec<i64>,
    /// For each of them, the rooms that have as much or more.
    at_least: Vec<FixedBitSet>,
}

impl RoomTable {
    /// Creates a table of so many rooms. `amount` returns what a room has of a resource.
    pub(super) fn of(rooms: usize, resources: usize, amount: impl Fn(usize, usize) -> i64) -> Self {
        let mut all = FixedBitSet::with_capacity(rooms);
        all.insert_range(..);
        let amounts = (0..resources).map(|resource| {
            let amounts: Vec<i64> = (0..rooms).map(|room| amount(room, resource)).collect();
            Amounts::of(&amounts)
        });
        RoomTable {
            all,
            amounts: amounts.collect(),
        }
    }

    /// Removes the rooms that do not hold a load from a set.
    pub(super) fn keep_holding(&self, load: &[i64], set: &mut FixedBitSet) {
        for (amounts, least) in self.amounts.iter().zip(load) {
            // All rooms have the least amount.
            match amounts.first_with(*least) {
                0 => {}
                first => match amounts.at_least.get(first) {
                    Some(enough) => set.intersect_with(enough),
                    None => set.clear(),
                },
            }
        }
    }

    /// Returns the first room that holds a load and `serves`.
    pub(super) fn first_holding(
        &self,
        load: &[i64],
        mut serves: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let mut holding: SmallVec<[&[usize]; 16]> = SmallVec::new();
        for (amounts, least) in self.amounts.iter().zip(load) {
            // All rooms have the least amount, and none has more than the last one.
            match amounts.first_with(*least) {
                0 => {}
                first => holding.push(amounts.at_least.get(first)?.as_slice()),
            }
        }
        for (index, block) in self.all.as_slice().iter().enumerate() {
            let mut rest = holding
                .iter()
                .fold(*block, |rest, enough| rest & enough[index]);
            while rest != 0 {
                let room = index * BITS + rest.trailing_zeros() as usize;
                if serves(room) {
                    return Some(room);
                }
                rest &= rest - 1;
            }
        }
        None
    }
}

impl Amounts {
    /// Creates the table of one resource; `amounts` has what each room has.
    fn of(amounts: &[i64]) -> Self {
        let mut different = amounts.to_vec();
        different.sort_unstable();
        different.dedup();
        let mut with = vec![Vec::new(); different.len()];
        for (room, amount) in amounts.iter().enumerate() {
            with[different.partition_point(|other| other < amount)].push(room);
        }
        let mut enough = FixedBitSet::with_capacity(amounts.len());
        let mut at_least = Vec::with_capacity(different.len());
        for rooms in with.into_iter().rev() {
            enough.extend(rooms);
            at_least.push(enough.clone());
        }
        at_least.reverse();
        Amounts {
            different,
            at_least,
        }
    }

    /// Returns the place of the first amount that is no less than this.
    fn first_with(&self, least: i64) -> usize {
        self.different.partition_point(|amount| *amount < least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_are_found_as_by_looking_at_each() {
        let rooms: Vec<[i64; 2]> = (0..200_i64)
            .map(|room| [room * 7 % 11 - 2, room * 5 % 13])
            .collect();
        let table = RoomTable::of(rooms.len(), 2, |room, resource| rooms[room][resource]);
        for load in (-3..12).flat_map(|first| (0..15).map(move |second| [first, second])) {
            let holds = |room: &usize| {
                let mut pairs = load.iter().zip(rooms[*room]);
                pairs.all(|(load, amount)| *load <= amount)
            };
            let mut set: FixedBitSet = (0..rooms.len()).filter(|room| room % 3 > 0).collect();
            let mut kept: Vec<usize> = set.ones().filter(holds).collect();
            table.keep_holding(&load, &mut set);
            assert_eq!(set.ones().collect::<Vec<_>>(), kept, "{load:?}");
            kept.retain(|room| room % 2 == 0);
            let first = table.first_holding(&load, |room| room % 3 > 0 && room % 2 == 0);
            assert_eq!(first, kept.first().copied(), "{load:?}");
        }
    }
}
