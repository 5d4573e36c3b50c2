//! Finds time zones by name like Go's `time.LoadLocation`.

use jiff::tz::TimeZone;

/// The reason why there is no zone of a name, with Go's message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZoneError {
    /// The name would leave the directory of the zones.
    #[error("time: invalid location name")]
    InvalidName,
    /// The database has no zone of this name.
    #[error("unknown time zone {0}")]
    Unknown(String),
}

/// Returns the zone of a name. Names are case-sensitive, as Go looks them up as files.
///
/// # Errors
/// The name is unknown or invalid.
pub fn load(name: &str) -> Result<TimeZone, ZoneError> {
    if matches!(name, "" | "UTC" | "Local") {
        return Ok(TimeZone::UTC);
    }
    if name.contains("..") || name.starts_with(['/', '\\']) {
        return Err(ZoneError::InvalidName);
    }
    // jiff finds names without regard to case.
    let found = TimeZone::get(name).ok();
    let found = found.filter(|zone| zone.iana_name() == Some(name));
    found.ok_or_else(|| ZoneError::Unknown(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::load;

    #[test]
    fn zones_are_those_of_the_database_letter_by_letter() {
        let why = |name| load(name).err().map(|error| error.to_string());
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
