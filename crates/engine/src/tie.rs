//! Breaks ties between nodes of equal score by the caller's seed and the nodes' names.

use std::cmp::Reverse;
use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

/// Returns a node's place on the tie-breaking circle, which is a hash of its name.
pub(crate) fn tie_place(name: &str) -> u64 {
    let mut hasher = FxHasher::default();
    name.hash(&mut hasher);
    mix(hasher.finish())
}

/// Returns the place on the circle from which a seed searches for the next node.
pub(crate) fn tie_start(seed: u64) -> u64 {
    mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

/// Ranks equal nodes by seed and name: the first one after the seed's place on the circle ranks highest. The
/// result looks random but is reproducible and does not depend on the order of arrival.
pub(crate) fn tie(seed: u64, name: &str) -> Reverse<(u64, &str)> {
    // Wrapping subtraction is the distance on the circle; the name decides between equal hashes.
    Reverse((tie_place(name).wrapping_sub(tie_start(seed)), name))
}

/// Spreads similar numbers over all 64 bits.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
