//! The errors of `github.com/blang/semver/v4` for invalid versions.

use super::{integer, quote};

/// Returns the error for a text that is not a version; `None` if it is one.
pub fn fault(text: &str) -> Option<String> {
    if text.is_empty() {
        return Some("Version string empty".to_owned());
    }
    let mut parts = text.splitn(3, '.');
    let (Some(major), Some(minor), Some(patch)) = (parts.next(), parts.next(), parts.next()) else {
        return Some("No Major.Minor.Patch elements found".to_owned());
    };
    // The build may contain hyphens, so it is split off before the pre-release.
    let (patch, build) = match patch.split_once('+') {
        Some((patch, build)) => (patch, Some(build)),
        None => (patch, None),
    };
    let (patch, release) = match patch.split_once('-') {
        Some((patch, release)) => (patch, Some(release)),
        None => (patch, None),
    };
    // Go's library checks the parts in this order.
    let numbers = [("major", major), ("minor", minor), ("patch", patch)];
    let mut numbers = numbers.into_iter();
    numbers
        .find_map(|(name, digits)| of_number(name, digits))
        .or_else(|| release?.split('.').find_map(of_release))
        .or_else(|| build?.split('.').find_map(of_build))
}

fn of_number(name: &str, digits: &str) -> Option<String> {
    let capital = name[..1].to_ascii_uppercase() + &name[1..];
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Some(format!(
            "Invalid character(s) found in {name} number {}",
            quote(digits)
        ));
    }
    if has_leading_zeros(digits) {
        return Some(format!(
            "{capital} number must not contain leading zeroes {}",
            quote(digits)
        ));
    }
    too_big(digits)
}

fn of_release(part: &str) -> Option<String> {
    let is_number = part.bytes().all(|b| b.is_ascii_digit());
    match part {
        "" => Some("Prerelease is empty".to_owned()),
        part if is_number && has_leading_zeros(part) => Some(format!(
            "Numeric PreRelease version must not contain leading zeroes {}",
            quote(part)
        )),
        part if is_number => too_big(part),
        part if is_plain(part) => None,
        part => Some(format!(
            "Invalid character(s) found in prerelease {}",
            quote(part)
        )),
    }
}

fn of_build(part: &str) -> Option<String> {
    match part {
        "" => Some("Build meta data is empty".to_owned()),
        part if is_plain(part) => None,
        part => Some(format!(
            "Invalid character(s) found in build meta data {}",
            quote(part)
        )),
    }
}

fn is_plain(part: &str) -> bool {
    part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn has_leading_zeros(digits: &str) -> bool {
    digits.len() > 1 && digits.starts_with('0')
}

fn too_big(digits: &str) -> Option<String> {
    let is_read = digits.parse::<u64>().is_ok();
    (!is_read).then(|| integer::fault("ParseUint", digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_version_is_told_as_the_library_tells_it() {
        for (text, why) in [
            ("", "Version string empty"),
            ("1.0", "No Major.Minor.Patch elements found"),
            ("a.0.0", r#"Invalid character(s) found in major number "a""#),
            (
                "1.00.0",
                r#"Minor number must not contain leading zeroes "00""#,
            ),
            (
                "1.0.x-1",
                r#"Invalid character(s) found in patch number "x""#,
            ),
            (".0.0", r#"strconv.ParseUint: parsing "": invalid syntax"#),
            ("1.0.0-", "Prerelease is empty"),
            (
                "1.0.0-01",
                r#"Numeric PreRelease version must not contain leading zeroes "01""#,
            ),
            (
                "1.0.0-a_b",
                r#"Invalid character(s) found in prerelease "a_b""#,
            ),
            ("1.0.0+", "Build meta data is empty"),
            (
                "1.0.0+a_b",
                r#"Invalid character(s) found in build meta data "a_b""#,
            ),
        ] {
            assert_eq!(fault(text).as_deref(), Some(why), "{text}");
        }
        assert_eq!(fault("1.2.3-rc.1+build.01"), None);
    }
}
