//! `--scheduler-config`: parses kube-scheduler's configuration file, YAML or JSON.
//!
//! [`mullion_controllers::scheduler::config`] defines and checks its content.

use std::path::Path;

use mullion_controllers::scheduler::config::Config;
use serde_json::Value;

use crate::{failure::Failure, input};

const HINT: &str = "a KubeSchedulerConfiguration begins: {apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, profiles: [...]}";

/// Reads a file, and returns the configuration and the text.
pub(crate) fn read(path: &Path) -> Result<(Config, String), Failure> {
    let text = input::text_of(path).map_err(|failure| failure.hint(HINT))?;
    let config = parse(&text).map_err(|mistakes| {
        let path = input::named(path);
        Failure::input(match &mistakes[..] {
            [only] => format!("{path}: {only}"),
            all => format!(
                "{path}: {} mistakes\n       {}",
                all.len(),
                all.join("\n       ")
            ),
        })
        .hint(HINT)
    });
    config.map(|config| (config, text))
}

/// Parses a text, or returns all mistakes in it.
pub(super) fn parse(text: &str) -> Result<Config, Vec<String>> {
    let value: Value = input::fields(text).map_err(|why| vec![why.to_string()])?;
    Config::read(&value).map_err(|errors| errors.0.iter().map(ToString::to_string).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_profiles_in_yaml_and_in_json() {
        let yaml = "{apiVersion: kubescheduler.config.k8s.io/v1, kind: KubeSchedulerConfiguration, profiles: [{schedulerName: packing}]}";
        let json = r#"{"apiVersion":"kubescheduler.config.k8s.io/v1","kind":"KubeSchedulerConfiguration","profiles":[{"schedulerName":"packing"}]}"#;
        let config = parse(yaml).expect("valid");
        assert_eq!(config.profiles[0].scheduler_name, "packing");
        assert_eq!(parse(json), Ok(config));
    }

    #[test]
    fn a_file_that_is_something_else_is_refused_in_one_line() {
        let refused = parse("kind: Pod").expect_err("no configuration");
        assert_eq!(
            refused,
            [
                "apiVersion: Unsupported value: null: supported values: \"kubescheduler.config.k8s.io/v1\""
            ]
        );
        let malformed = parse("profiles: [").expect_err("no YAML");
        assert_eq!((malformed.len(), malformed[0].lines().count()), (1, 1));
    }
}
