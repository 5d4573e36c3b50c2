//! Finds members of sets by their order, a block of bits at a time.

use std::ops::Range;

use fixedbitset::FixedBitSet;

/// The number of bits in a block.
const BITS: usize = usize::BITS as usize;

/// Returns the first member of a set in a range.
pub(super) fn first_in(set: &FixedBitSet, range: Range<usize>) -> Option<usize> {
    let blocks = set
        .as_slice()
        .get(range.start / BITS..range.end.div_ceil(BITS))?;
    let skipped = range.start / BITS * BITS;
    let mut mask = usize::MAX << (range.start % BITS);
    for (index, block) in blocks.iter().enumerate() {
        let block = block & std::mem::replace(&mut mask, usize::MAX);
        if block != 0 {
            let found = skipped + index * BITS + block.trailing_zeros() as usize;
            return (found < range.end).then_some(found);
        }
    }
    None
}

/// Returns the last member of a set in a range.
pub(super) fn last_in(set: &FixedBitSet, range: Range<usize>) -> Option<usize> {
    let blocks = set
        .as_slice()
        .get(range.start / BITS..range.end.div_ceil(BITS))?;
    let skipped = range.start / BITS * BITS;
    let mut mask = usize::MAX >> (range.end.wrapping_neg() % BITS);
    for (index, block) in blocks.iter().enumerate().rev() {
        let block = block & std::mem::replace(&mut mask, usize::MAX);
        if block != 0 {
            let found = skipped + index * BITS + BITS - 1 - block.leading_zeros() as usize;
            return (found >= range.start).then_some(found);
        }
    }
    None
}

/// Returns the member of a set before which there are so many others.
pub(super) fn nth(set: &FixedBitSet, mut before: usize) -> Option<usize> {
    for (index, block) in set.as_slice().iter().enumerate() {
        let count = block.count_ones() as usize;
        if before < count {
            let mut rest = *block;
            (0..before).for_each(|_| rest &= rest - 1);
            return Some(index * BITS + rest.trailing_zeros() as usize);
        }
        before -= count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_as_by_looking_at_each() {
        let members = [0, 5, 63, 64, 65, 127, 190, 191];
        let mut set = FixedBitSet::with_capacity(192);
        set.extend(members);
        for start in 0..=192 {
            for end in start..=192 {
                let within = || members.into_iter().filter(|one| (start..end).contains(one));
                assert_eq!(
                    first_in(&set, start..end),
                    within().next(),
                    "{start}..{end}"
                );
                assert_eq!(
                    last_in(&set, start..end),
                    within().next_back(),
                    "{start}..{end}"
                );
            }
        }
        for (before, member) in members.into_iter().enumerate() {
            assert_eq!(nth(&set, before), Some(member));
        }
        assert_eq!(nth(&set, members.len()), None);
    }
}
