//! The order in which kube-apiserver prefers API versions (`v1`, `v1beta2`).

use std::cmp::Reverse;

/// Returns a key that sorts versions by kube-apiserver's preference: stable before beta before alpha, newer before older, and all others
/// last by name.
pub(crate) fn priority(version: &str) -> (u8, Reverse<u64>, Reverse<u64>, String) {
    let parsed = version.strip_prefix('v').and_then(|rest| {
        let digits = rest
            .find(|character: char| !character.is_ascii_digit())
            .unwrap_or(rest.len());
        let major: u64 = rest[..digits].parse().ok()?;
        let (stage, minor) = match &rest[digits..] {
            "" => (0, 0),
            tail => match (tail.strip_prefix("beta"), tail.strip_prefix("alpha")) {
                (Some(minor), _) => (1, minor.parse().ok()?),
                (_, Some(minor)) => (2, minor.parse().ok()?),
                _ => return None,
            },
        };
        Some((stage, major, minor))
    });
    let (stage, major, minor) = parsed.unwrap_or((3, 0, 0));
    (stage, Reverse(major), Reverse(minor), version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_preferred_as_upstream_prefers_them() {
        let mut versions = ["v1alpha1", "foo", "v2", "v1beta1", "v1", "v10", "v2beta3"];
        versions.sort_by_key(|version| priority(version));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v2beta3", "v1beta1", "v1alpha1", "foo"]
        );
    }
}
