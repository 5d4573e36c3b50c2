//! Sets of positions in the tie order, built to find the first member at or after a position quickly.
//!
//! A small set is a sorted list; a large one is a bit set with one summary bit per word. So the memory of a
//! small set is proportional to its members, and a lookup touches few cache lines. Invariant: a summary bit is
//! set exactly if its word is not zero.

/// A list with more members than this becomes a bit set.
const MANY: usize = 64;
/// A bit set with fewer members than this becomes a list. It is far below [`MANY`], so that a set at the limit
/// does not change back and forth.
const FEW: usize = 16;

/// A set of positions, as a sorted list or a bit set.
#[derive(Clone, Debug)]
pub(super) enum NodeSet {
    Few(Vec<u32>),
    Many(Bits),
}

#[derive(Clone, Debug)]
pub(super) struct Bits {
    words: Box<[u64]>,
    summary: Box<[u64]>,
    count: usize,
}

/// A restriction to part of a set: only positions that satisfy it count.
#[derive(Clone, Copy)]
pub(super) enum Restriction<'a> {
    /// Every position counts.
    All,
    /// Only members of the other set count.
    In(&'a NodeSet),
    /// Only positions outside the other set count.
    Out(&'a NodeSet),
}

impl Restriction<'_> {
    fn admits(self, position: u32) -> bool {
        match self {
            Restriction::All => true,
            Restriction::In(set) => set.contains(position),
            Restriction::Out(set) => !set.contains(position),
        }
    }
}

impl Default for NodeSet {
    fn default() -> Self {
        NodeSet::Few(Vec::new())
    }
}

impl NodeSet {
    pub(super) fn len(&self) -> usize {
        match self {
            NodeSet::Few(members) => members.len(),
            NodeSet::Many(bits) => bits.count,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn contains(&self, position: u32) -> bool {
        match self {
            NodeSet::Few(members) => members.binary_search(&position).is_ok(),
            NodeSet::Many(bits) => bits.contains(position),
        }
    }

    /// Adds a position, which must be below `width`.
    pub(super) fn insert(&mut self, position: u32, width: usize) {
        match self {
            NodeSet::Many(bits) => bits.insert(position),
            NodeSet::Few(members) => {
                if let Err(index) = members.binary_search(&position) {
                    members.insert(index, position);
                }
                if members.len() > MANY {
                    let mut bits = Bits::new(width);
                    members.iter().for_each(|member| bits.insert(*member));
                    *self = NodeSet::Many(bits);
                }
            }
        }
    }

    pub(super) fn remove(&mut self, position: u32) {
        match self {
            NodeSet::Few(members) => {
                if let Ok(index) = members.binary_search(&position) {
                    members.remove(index);
                }
            }
            NodeSet::Many(bits) => {
                bits.remove(position);
                if bits.count < FEW {
                    *self = NodeSet::Few(bits.iter().collect());
                }
            }
        }
    }

    /// Returns the first counting member at or after `start`; after the last position the search goes on at the
    /// first one.
    pub(super) fn first(&self, start: u32, within: Restriction<'_>) -> Option<u32> {
        match (self, within) {
            (NodeSet::Few(members), _) => {
                let split = members.partition_point(|member| *member < start);
                let around = members[split..].iter().chain(&members[..split]);
                around.copied().find(|member| within.admits(*member))
            }
            // An intersection is the same from both sides, and a list is walked faster than a bit set.
            (NodeSet::Many(_), Restriction::In(few @ NodeSet::Few(_))) => {
                few.first(start, Restriction::In(self))
            }
            (NodeSet::Many(bits), _) => {
                let width = bits.words.len() as u32 * 64;
                bits.first(start, width, within)
                    .or_else(|| bits.first(0, start, within))
            }
        }
    }

    /// Returns the number of members that count.
    pub(super) fn count(&self, within: Restriction<'_>) -> usize {
        match (self, within) {
            (_, Restriction::All) => self.len(),
            // Counting what is outside would visit every word; what is inside is counted faster.
            (_, Restriction::Out(other)) => self.len() - self.count(Restriction::In(other)),
            (NodeSet::Few(members), Restriction::In(_)) => members
                .iter()
                .filter(|member| within.admits(**member))
                .count(),
            (NodeSet::Many(_), Restriction::In(few @ NodeSet::Few(_))) => {
                few.count(Restriction::In(self))
            }
            (NodeSet::Many(bits), Restriction::In(NodeSet::Many(other))) => {
                let words = bits.words.iter().zip(&other.words);
                words
                    .map(|(word, other)| (word & other).count_ones() as usize)
                    .sum()
            }
        }
    }
}

impl Bits {
    fn new(width: usize) -> Self {
        let words = width.div_ceil(64).max(1);
        Bits {
            words: vec![0; words].into(),
            summary: vec![0; words.div_ceil(64)].into(),
            count: 0,
        }
    }

    fn contains(&self, position: u32) -> bool {
        self.words[position as usize / 64] & bit(position) != 0
    }

    fn insert(&mut self, position: u32) {
        let index = position as usize / 64;
        let word = &mut self.words[index];
        self.count += usize::from(*word & bit(position) == 0);
        *word |= bit(position);
        self.summary[index / 64] |= bit(index as u32);
    }

    fn remove(&mut self, position: u32) {
        let index = position as usize / 64;
        let word = &mut self.words[index];
        self.count -= usize::from(*word & bit(position) != 0);
        *word &= !bit(position);
        if *word == 0 {
            self.summary[index / 64] &= !bit(index as u32);
        }
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let lowest = left.trailing_zeros();
                // Clears the lowest bit that is set.
                left &= left.wrapping_sub(1);
                (lowest < 64).then_some(index as u32 * 64 + lowest)
            })
        })
    }

    /// Returns the first counting member in `from..to`.
    fn first(&self, from: u32, to: u32, within: Restriction<'_>) -> Option<u32> {
        if from >= to {
            return None;
        }
        let mut index = from as usize / 64;
        let mut mask = u64::MAX << (from % 64);
        loop {
            let word = self.words[index] & mask & self.admitted(index, within);
            if word != 0 {
                let found = index as u32 * 64 + word.trailing_zeros();
                return (found < to).then_some(found);
            }
            mask = u64::MAX;
            // The summary skips empty words, so a sparse set costs what it holds and not its width.
            index = self.next_word(index + 1)?;
            if index as u32 * 64 >= to {
                return None;
            }
        }
    }

    /// Returns the positions of a word that `within` allows, as bits.
    fn admitted(&self, index: usize, within: Restriction<'_>) -> u64 {
        match within {
            Restriction::All => u64::MAX,
            Restriction::In(NodeSet::Many(other)) => other.words[index],
            Restriction::Out(NodeSet::Many(other)) => !other.words[index],
            Restriction::In(NodeSet::Few(members)) => few_bits(members, index),
            Restriction::Out(NodeSet::Few(members)) => !few_bits(members, index),
        }
    }

    /// Returns the index of the first word that is not zero, searching from word `from` on.
    fn next_word(&self, from: usize) -> Option<usize> {
        let mut index = from / 64;
        let mut mask = u64::MAX << (from % 64);
        loop {
            let word = self.summary.get(index)? & mask;
            if word != 0 {
                return Some(index * 64 + word.trailing_zeros() as usize);
            }
            mask = u64::MAX;
            index += 1;
        }
    }
}

fn bit(position: u32) -> u64 {
    1 << (position % 64)
}

/// Returns the list members that fall into a word, as bits.
fn few_bits(members: &[u32], index: usize) -> u64 {
    let from = members.partition_point(|member| (*member as usize) < index * 64);
    let inside = members[from..]
        .iter()
        .take_while(|member| **member as usize / 64 == index);
    inside.fold(0, |bits, member| bits | bit(*member))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const WIDTH: usize = 9000;

    fn set(members: &BTreeSet<u32>) -> NodeSet {
        let mut set = NodeSet::default();
        members.iter().for_each(|member| set.insert(*member, WIDTH));
        set
    }

    fn members() -> impl Strategy<Value = BTreeSet<u32>> {
        prop_oneof![
            prop::collection::btree_set(0..WIDTH as u32, 0..100),
            prop::collection::btree_set(0..WIDTH as u32, 100..2000),
            prop::collection::btree_set(0..70_u32, 0..70),
        ]
    }

    fn first(members: impl Iterator<Item = u32> + Clone, start: u32) -> Option<u32> {
        members
            .clone()
            .find(|member| *member >= start)
            .or_else(|| members.clone().next())
    }

    proptest! {
        #[test]
        fn sets_answer_like_sorted_ones(
            own in members(), other in members(), gone in members(), start in 0..WIDTH as u32,
        ) {
            let mut compact = set(&own);
            gone.iter().for_each(|member| compact.remove(*member));
            let own: BTreeSet<u32> = own.difference(&gone).copied().collect();
            let compact_other = set(&other);
            prop_assert_eq!(compact.len(), own.len());
            prop_assert_eq!(compact.first(start, Restriction::All), first(own.iter().copied(), start));
            let both = own.intersection(&other).copied();
            prop_assert_eq!(compact.first(start, Restriction::In(&compact_other)), first(both.clone(), start));
            prop_assert_eq!(compact.count(Restriction::In(&compact_other)), both.count());
            let rest = own.difference(&other).copied();
            prop_assert_eq!(compact.first(start, Restriction::Out(&compact_other)), first(rest.clone(), start));
            prop_assert_eq!(compact.count(Restriction::Out(&compact_other)), rest.count());
        }
    }
}
