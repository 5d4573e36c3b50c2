//! Ids of what the endpoint makes.
//!
//! Invariant: they follow from the seed and the order of calls, so that a history repeats.

/// A sequence of ids (SplitMix64).
pub(crate) struct Ids {
    state: u64,
}

impl Ids {
    pub(crate) fn new(seed: u64) -> Self {
        // Another sequence than that of the simulated EC2 of the same seed.
        Self { state: !seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// An id such as `lt-0123456789abcdef0`.
    pub(crate) fn resource(&mut self, prefix: &str) -> String {
        format!("{prefix}-0{:016x}", self.next())
    }

    /// An id of IAM's such as `AIPA0123456789ABCDEF0`.
    pub(crate) fn principal(&mut self, prefix: &str) -> String {
        format!("{prefix}0{:016X}", self.next())
    }

    /// The id of IAM's that something of a name has always had.
    pub(crate) fn of_name(prefix: &str, name: &str) -> String {
        let seed = name.bytes().fold(0_u64, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        Self::new(seed).principal(prefix)
    }

    /// An id in the form of a UUID.
    pub(crate) fn request(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
        format!(
            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            low >> 52,
            low & 0xffff_ffff_ffff
        )
    }
}
