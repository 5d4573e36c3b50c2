//! Karpenter's settings as flags and variables of `mullion up`.

use std::{collections::BTreeMap, fmt, time::Duration};

use clap::{Args, ValueEnum};
use mullion_cloud::MemoryOverhead;
use mullion_controllers::provisioner::Settings;
use mullion_engine::provision::{MinValuesPolicy, PreferencePolicy};

use crate::{
    cli::{ValueError, duration, whole},
    failure::Failure,
};

/// The setting's name in Karpenter's environment.
const VM_MEMORY_OVERHEAD: &str = "VM_MEMORY_OVERHEAD_PERCENT";
/// The setting's name in Karpenter's environment.
const RESERVED_ENIS: &str = "RESERVED_ENIS";
/// The setting's name in Karpenter's environment.
const PREFERENCES: &str = "PREFERENCE_POLICY";
/// The setting's name in Karpenter's environment.
const MIN_VALUES: &str = "MIN_VALUES_POLICY";
/// A limit above the number of interfaces of any instance type.
const MOST_ENIS: u32 = 100;

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
        env = PREFERENCES,
        hide_env_values = true,
        hide_possible_values = true
    )]
    preference_policy: Option<Preferences>,

    /// Whether a pool's minValues keep it from buying where there is less choice (Strict), or not (BestEffort) [default: Strict]
    #[arg(
        long,
        value_name = "POLICY",
        env = MIN_VALUES,
        hide_env_values = true,
        hide_possible_values = true
    )]
    min_values_policy: Option<MinValues>,

    /// The part of an instance type's memory that its nodes are expected not to show, until one is there [default: 0.075]
    #[arg(long, value_name = "FRACTION", env = VM_MEMORY_OVERHEAD, hide_env_values = true, value_parser = memory_overhead)]
    vm_memory_overhead_percent: Option<MemoryOverhead>,

    /// Network interfaces that are left out when pods are counted that a Linux node has addresses for [default: 0]
    #[arg(long, value_name = "N", env = RESERVED_ENIS, hide_env_values = true, value_parser = reserved_enis)]
    reserved_enis: Option<u32>,

    /// Do not try with dry runs whether EC2 allows the launches of an EC2NodeClass
    #[arg(long, env = "DISABLE_DRY_RUN", hide_env_values = true)]
    disable_dry_run: bool,
}

/// Parses a fraction, as Karpenter does although the setting's name says percent.
fn memory_overhead(text: &str) -> Result<MemoryOverhead, ValueError> {
    let fraction: Option<f64> = text.parse().ok();
    fraction
        .and_then(MemoryOverhead::of_fraction)
        .ok_or(ValueError::Fraction)
}

fn reserved_enis(text: &str) -> Result<u32, ValueError> {
    whole(text, 0, MOST_ENIS)
}

/// Returns the settings that are not the default and that plans use, by the names of Karpenter's variables, for the cluster to publish.
pub(super) fn texts(settings: &Settings) -> BTreeMap<&'static str, String> {
    let usual = Settings::default();
    let mut texts = BTreeMap::new();
    let mut name = |policy: Option<clap::builder::PossibleValue>, variable| {
        texts.extend(policy.map(|policy| (variable, policy.get_name().to_owned())));
    };
    let preferences = match settings.preferences {
        PreferencePolicy::WithinPrice => None,
        PreferencePolicy::Respect => Some(Preferences::Respect),
        PreferencePolicy::Ignore => Some(Preferences::Ignore),
    };
    name(
        preferences.and_then(|own| own.to_possible_value()),
        PREFERENCES,
    );
    let min_values = match settings.min_values {
        MinValuesPolicy::Strict => None,
        MinValuesPolicy::BestEffort => Some(MinValues::BestEffort),
    };
    name(
        min_values.and_then(|own| own.to_possible_value()),
        MIN_VALUES,
    );
    if settings.vm_memory_overhead != usual.vm_memory_overhead {
        let fraction = settings.vm_memory_overhead.fraction();
        texts.insert(VM_MEMORY_OVERHEAD, fraction.to_string());
    }
    if settings.reserved_enis != usual.reserved_enis {
        texts.insert(RESERVED_ENIS, settings.reserved_enis.to_string());
    }
    texts
}

/// A variable has an invalid value.
#[derive(Debug, PartialEq)]
pub(super) struct InvalidVariable {
    variable: String,
    value: String,
}

impl fmt::Display for InvalidVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be {:?}", self.variable, self.value)
    }
}

/// Parses the output of [`texts`].
///
/// # Errors
/// A variable has an invalid value.
pub(super) fn read(texts: &BTreeMap<String, String>) -> Result<Settings, InvalidVariable> {
    let mut settings = Settings::default();
    for (variable, text) in texts {
        let wrong = || InvalidVariable {
            variable: variable.clone(),
            value: text.clone(),
        };
        match variable.as_str() {
            PREFERENCES => {
                settings.preferences = match Preferences::from_str(text, false) {
                    Ok(Preferences::Respect) => PreferencePolicy::Respect,
                    Ok(Preferences::Ignore) => PreferencePolicy::Ignore,
                    Err(_) => return Err(wrong()),
                };
            }
            MIN_VALUES => {
                settings.min_values = match MinValues::from_str(text, false) {
                    Ok(MinValues::Strict) => MinValuesPolicy::Strict,
                    Ok(MinValues::BestEffort) => MinValuesPolicy::BestEffort,
                    Err(_) => return Err(wrong()),
                };
            }
            VM_MEMORY_OVERHEAD => {
                settings.vm_memory_overhead = memory_overhead(text).map_err(|_| wrong())?;
            }
            RESERVED_ENIS => {
                settings.reserved_enis = reserved_enis(text).map_err(|_| wrong())?.into();
            }
            // A newer version may have published more fields.
            _ => {}
        }
    }
    Ok(settings)
}

impl KarpenterArgs {
    /// Returns the settings from flags and variables.
    ///
    /// # Errors
    /// They contradict each other.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
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
            vm_memory_overhead: self
                .vm_memory_overhead_percent
                .unwrap_or(usual.vm_memory_overhead),
            reserved_enis: self.reserved_enis.map_or(usual.reserved_enis, u64::from),
            disable_dry_run: self.disable_dry_run,
            ..usual
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
    fn what_plans_heed_is_read_as_it_was_told() {
        assert!(texts(&Settings::default()).is_empty());
        let settings = Settings {
            preferences: PreferencePolicy::Ignore,
            min_values: MinValuesPolicy::BestEffort,
            vm_memory_overhead: MemoryOverhead::of_fraction(0.031_25).expect("a part"),
            reserved_enis: 2,
            ..Settings::default()
        };
        let told = texts(&settings).into_iter();
        let mut told: BTreeMap<_, _> = told.map(|(key, text)| (key.to_owned(), text)).collect();
        assert_eq!(super::read(&told), Ok(settings));
        told.insert(PREFERENCES.to_owned(), "perhaps".to_owned());
        let wrong = "PREFERENCE_POLICY cannot be \"perhaps\"";
        let refused = super::read(&told).map_err(|error| error.to_string());
        assert_eq!(refused, Err(wrong.to_owned()));
    }

    #[test]
    fn settings_are_read_by_karpenters_names() {
        assert_eq!(read(&[]), Ok(Settings::default()));
        let own = read(&[
            "--batch-idle-duration=2s",
            "--batch-max-duration=1m30s",
            "--preference-policy=Respect",
            "--min-values-policy=BestEffort",
            "--vm-memory-overhead-percent=0.05",
            "--reserved-enis=1",
        ]);
        let own = own.expect("they are known");
        assert_eq!(own.batch_idle, Duration::from_secs(2));
        assert_eq!(own.batch_max, Duration::from_secs(90));
        assert_eq!(own.preferences, PreferencePolicy::Respect);
        assert_eq!(own.min_values, MinValuesPolicy::BestEffort);
        assert_eq!(own.vm_memory_overhead.of_mib(1000), 50);
        assert_eq!(own.reserved_enis, 1);
        for wrong in [
            "--batch-idle-duration=20s",
            "--batch-idle-duration=0s",
            "--preference-policy=respect",
            "--min-values-policy=Best",
            "--vm-memory-overhead-percent=7.5",
            "--vm-memory-overhead-percent=-0.1",
            "--reserved-enis=-1",
            "--reserved-enis=101",
        ] {
            assert!(read(&[wrong]).is_err(), "{wrong}");
        }
        let refused = read(&["--vm-memory-overhead-percent=7.5"]).expect_err("too much");
        assert!(refused.contains("0.075 is 7.5 %"), "{refused}");
    }
}
