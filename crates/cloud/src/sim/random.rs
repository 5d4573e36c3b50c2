//! Random numbers with a seed, whose sequence is part of the program (SplitMix64).
//!
//! Invariant: the same seed gives the same numbers in every release, so that a recorded run can be repeated; library generators guarantee
//! that only within a version.

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Continues the sequence of an earlier process.
    pub(super) fn resume(&mut self, state: u64) {
        self.state = state;
    }

    /// Returns the state of the sequence.
    pub(super) fn state(&self) -> u64 {
        self.state
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which must be above zero. The bias is below one in a billion for the small bounds used here.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns an id in EC2's form: the prefix, a zero and 16 hexadecimal digits.
    pub(super) fn id(&mut self, prefix: &str) -> String {
        format!("{prefix}-0{:016x}", self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }
}
