//! Generates the ids of objects that the endpoint creates.
//!
//! Invariant: ids depend only on the seed and the order of calls, so a repeated run gives the same ids.

/// Generates ids from a pseudo-random sequence (SplitMix64).
pub(crate) struct IdGenerator {
    state: u64,
}

impl IdGenerator {
    pub(crate) fn new(seed: u64) -> Self {
        // Inverted, because the simulated EC2 has a sequence from the same seed and the two must not repeat each other's ids.
        Self { state: !seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns an id such as `lt-0123456789abcdef0`.
    pub(crate) fn resource(&mut self, prefix: &str) -> String {
        format!("{prefix}-0{:016x}", self.next())
    }

    /// Returns an id of IAM such as `AIPA0123456789ABCDEF0`.
    pub(crate) fn principal(&mut self, prefix: &str) -> String {
        format!("{prefix}0{:016X}", self.next())
    }

    /// Returns the id of an IAM object that exists from the start; it depends only on the object's name.
    pub(crate) fn of_name(prefix: &str, name: &str) -> String {
        let seed = name.bytes().fold(0_u64, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        Self::new(seed).principal(prefix)
    }

    /// Returns an id in the form of a UUID.
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
