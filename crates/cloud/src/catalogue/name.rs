//! The parts of an instance type's name (Karpenter: `instanceFamilyScheme`).
//!
//! Invariant: `<category>[-<n>tb]<generation><attributes>.<size>`; a name of another form has no
//! category and generation, and no default requirement ever matches it.

/// The parts of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeName<'a> {
    /// The family, for example `c6a`.
    pub family: &'a str,
    /// The size, for example `xlarge`.
    pub size: &'a str,
    /// The category, for example `c`, if the name has the usual form.
    pub category: Option<&'a str>,
    /// The generation, for example `6`, if the name has the usual form.
    pub generation: Option<u32>,
}

impl<'a> TypeName<'a> {
    /// Splits a name into its parts.
    pub fn parse(name: &'a str) -> Self {
        let (family, size) = name.split_once('.').unwrap_or((name, ""));
        let (category, generation) = match parts(family) {
            Some((category, generation)) => (Some(category), Some(generation)),
            None => (None, None),
        };
        Self {
            family,
            size,
            category,
            generation,
        }
    }
}

fn parts(family: &str) -> Option<(&str, u32)> {
    let letters = family.find(|c: char| !c.is_ascii_lowercase())?;
    let (category, mut rest) = family.split_at(letters);
    if let Some(memory) = rest.strip_prefix('-') {
        let (terabytes, after) = memory.split_once("tb")?;
        terabytes.parse::<u32>().ok()?;
        rest = after;
    }
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let generation = rest[..digits].parse().ok()?;
    (!category.is_empty()).then_some((category, generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let cases = [
            ("c6a.xlarge", "c6a", Some("c"), Some(6)),
            ("c7i-flex.large", "c7i-flex", Some("c"), Some(7)),
            ("u-6tb1.metal", "u-6tb1", Some("u"), Some(1)),
            ("im4gn.large", "im4gn", Some("im"), Some(4)),
            ("x2iedn.xlarge", "x2iedn", Some("x"), Some(2)),
            ("inf2.xlarge", "inf2", Some("inf"), Some(2)),
        ];
        for (name, family, category, generation) in cases {
            let parsed = TypeName::parse(name);
            assert_eq!(parsed.family, family);
            assert_eq!(parsed.category, category, "{name}");
            assert_eq!(parsed.generation, generation, "{name}");
        }
    }
}
