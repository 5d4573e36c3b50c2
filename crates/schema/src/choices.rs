//! A pseudo-random generator for the objects and writes in tests; the integration tests include this file too.

/// A generator whose output depends only on its seed.
pub(crate) struct Choices(pub(crate) u64);

impl Choices {
    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Returns one of `names`.
    pub(crate) fn of<'a>(&mut self, names: &[&'a str]) -> &'a str {
        names[self.below(names.len() as u64) as usize]
    }
}
