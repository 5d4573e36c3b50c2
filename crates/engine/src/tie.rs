//! Which of nodes with the same score is taken: the one that the caller's seed and the node's name pick.

use std::cmp::Reverse;
use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

/// A node's place on the circle on which equals are told apart: a hash of its name.
pub(crate) fn tie_place(name: &str) -> u64 {
    let mut hasher = FxHasher::default();
    name.hash(&mut hasher);
    mix(hasher.finish())
}

/// The place from which a seed looks for the next node.
pub(crate) fn tie_start(seed: u64) -> u64 {
    mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// Ranks equals by seed and name, the nearest after the seed's place on the circle highest: as good as random, the
/// same every time, whatever the order of arrival.
pub(crate) fn tie(seed: u64, name: &str) -> Reverse<(u64, &str)> {
    Reverse((tie_place(name).wrapping_sub(tie_start(seed)), name))
}

/// Spreads near-equal numbers over all 64 bits.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
