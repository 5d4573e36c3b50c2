//! Finds time zones by name like Go's `time.LoadLocation`.

use jiff::tz::TimeZone;

/// Returns the zone of a name. Names are case-sensitive, as Go looks them up as files.
///
/// # Errors
/// Go's error for an unknown or invalid name.
pub fn load(name: &str) -> Result<TimeZone, String> {
    if matches!(name, "" | "UTC" | "Local") {
        return Ok(TimeZone::UTC);
    }
    if name.contains("..") || name.starts_with(['/', '\\']) {
        return Err("time: invalid location name".to_owned());
    }
    // jiff finds names without regard to case.
    let found = TimeZone::get(name).ok();
    let found = found.filter(|zone| zone.iana_name() == Some(name));
    found.ok_or_else(|| format!("unknown time zone {name}"))
}

#[cfg(test)]
mod tests {
    use super::load;

    #[test]
    fn zones_are_those_of_the_database_letter_by_letter() {
        let why = |name| load(name).err();
        assert_eq!(why("Europe/Berlin"), None);
        assert!(why("europe/berlin").is_some());
        assert_eq!(
            why("Mars/Base").as_deref(),
            Some("unknown time zone Mars/Base")
        );
        for name in ["../x", "a..b", "/etc"] {
            assert_eq!(why(name).as_deref(), Some("time: invalid location name"));
        }
    }
}
