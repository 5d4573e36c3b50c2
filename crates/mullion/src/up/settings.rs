//! Karpenter's settings as flags and variables of `mullion up`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use mullion_controllers::provisioner::Settings;
use mullion_engine::provision::{MinValuesPolicy, PreferencePolicy};

use crate::{cli::duration, failure::Failure};

/// What `PREFERENCE_POLICY` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum Preferences {
    /// Nodes are bought as pods prefer them, whatever they cost.
    Respect,
    /// What pods prefer changes nothing.
    Ignore,
}

/// What `MIN_VALUES_POLICY` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum MinValues {
    /// Nothing is bought that leaves less choice than a pool demands.
    Strict,
    /// It is bought with as much choice as there is.
    BestEffort,
}

/// Karpenter's settings, by its names.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Karpenter's settings (docs/nodes-on-demand.md)")]
pub(crate) struct KarpenterArgs {
    /// Plan for pods once none came for this long [default: 1s]
    #[arg(long, value_name = "TIME", env = "BATCH_IDLE_DURATION", hide_env_values = true, value_parser = duration)]
    batch_idle_duration: Option<Duration>,

    /// Plan for pods this long after the first of them came, at the latest [default: 10s]
    #[arg(long, value_name = "TIME", env = "BATCH_MAX_DURATION", hide_env_values = true, value_parser = duration)]
    batch_max_duration: Option<Duration>,

    /// What pods prefer decides which nodes are bought at any price (Respect) or not at all (Ignore) [default: as long as a plan costs at
    /// most a tenth more, or what a NodePool's annotation mullion.dev/preference-price says]
    #[arg(
        long,
        value_name = "POLICY",
        env = "PREFERENCE_POLICY",
        hide_env_values = true,
        hide_possible_values = true
    )]
    preference_policy: Option<Preferences>,

    /// Whether a pool's minValues keep it from buying where there is less choice (Strict), or not (BestEffort) [default: Strict]
    #[arg(
        long,
        value_name = "POLICY",
        env = "MIN_VALUES_POLICY",
        hide_env_values = true,
        hide_possible_values = true
    )]
    min_values_policy: Option<MinValues>,
}

impl KarpenterArgs {
    /// The settings that flags and variables say.
    ///
    /// # Errors
    /// They contradict each other.
    pub(super) fn settings(&self) -> Result<Settings, Failure> {
        let usual = Settings::default();
        let settings = Settings {
            batch_idle: self.batch_idle_duration.unwrap_or(usual.batch_idle),
            batch_max: self.batch_max_duration.unwrap_or(usual.batch_max),
            preferences: match self.preference_policy {
                None => PreferencePolicy::WithinPrice,
                Some(Preferences::Respect) => PreferencePolicy::Respect,
                Some(Preferences::Ignore) => PreferencePolicy::Ignore,
            },
            min_values: match self.min_values_policy {
                None | Some(MinValues::Strict) => MinValuesPolicy::Strict,
                Some(MinValues::BestEffort) => MinValuesPolicy::BestEffort,
            },
        };
        if settings.batch_idle > settings.batch_max {
            return Err(Failure::input(format!(
                "--batch-idle-duration {:?} is longer than --batch-max-duration {:?}",
                settings.batch_idle, settings.batch_max
            ))
            .hint("a batch ends after the latter at the latest: make it at least as long"));
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        own: KarpenterArgs,
    }

    fn read(args: &[&str]) -> Result<Settings, String> {
        let all = ["up"].iter().chain(args);
        let flags = Flags::try_parse_from(all).map_err(|error| error.to_string())?;
        flags.own.settings().map_err(|failure| failure.to_string())
    }

    #[test]
    fn settings_are_read_by_karpenters_names() {
        assert_eq!(read(&[]), Ok(Settings::default()));
        let own = read(&[
            "--batch-idle-duration=2s",
            "--batch-max-duration=1m30s",
            "--preference-policy=Respect",
            "--min-values-policy=BestEffort",
        ]);
        let own = own.expect("they are known");
        assert_eq!(own.batch_idle, Duration::from_secs(2));
        assert_eq!(own.batch_max, Duration::from_secs(90));
        assert_eq!(own.preferences, PreferencePolicy::Respect);
        assert_eq!(own.min_values, MinValuesPolicy::BestEffort);
        for wrong in [
            "--batch-idle-duration=20s",
            "--batch-idle-duration=0s",
            "--preference-policy=respect",
            "--min-values-policy=Best",
        ] {
            assert!(read(&[wrong]).is_err(), "{wrong}");
        }
    }
}
