//! Parses a `KubeSchedulerConfiguration` v1 strictly into the engine's [`Profile`]s.
//!
//! Invariant: an unknown field or value is refused with its path and the allowed ones. Fields without an effect
//! here (leader election, client settings, parallelism, sampling: every node is scored) are checked and then
//! ignored. `shape` lists the allowed fields, `plugins` merges the enabled plugins, `args` parses plugin arguments.

mod args;
mod error;
mod plugins;
mod shape;

use std::collections::BTreeSet;

use mullion_engine::Profile;
use mullion_engine::profile::DEFAULT_SCHEDULER;
use serde::Deserialize;
use serde_json::Value;

pub use error::{ConfigError, ConfigErrors, Fault};

use super::queue::Backoff;
use args::PluginConfig;
use error::{Faults, refuse};
use plugins::Plugins;

const API_VERSION: &str = "kubescheduler.config.k8s.io/v1";
const KIND: &str = "KubeSchedulerConfiguration";

/// The settings of a scheduler from its configuration file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The profiles: at least one, with distinct names.
    pub profiles: Vec<Profile>,
    /// The back-off of refused pods.
    pub backoff: Backoff,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            profiles: vec![Profile::default()],
            backoff: Backoff::default(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Document {
    parallelism: i64,
    percentage_of_nodes_to_score: Option<i64>,
    pod_initial_backoff_seconds: i64,
    pod_max_backoff_seconds: i64,
    profiles: Vec<ProfileBody>,
    extenders: Vec<Value>,
}

impl Default for Document {
    fn default() -> Self {
        Document {
            parallelism: 16,
            percentage_of_nodes_to_score: None,
            pod_initial_backoff_seconds: 1,
            pod_max_backoff_seconds: 10,
            profiles: Vec::new(),
            extenders: Vec::new(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ProfileBody {
    scheduler_name: String,
    percentage_of_nodes_to_score: Option<i64>,
    plugins: Plugins,
    plugin_config: Vec<PluginConfig>,
}

impl Config {
    /// Parses a configuration.
    ///
    /// # Errors
    /// Returns all faults that kube-scheduler 1.36 would find. Values are checked only after all fields are known
    /// and have the right types. Of the arguments of one plugin only the first fault is returned.
    pub fn read(value: &Value) -> Result<Self, ConfigErrors> {
        for (field, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            let given = &value[field];
            if given != wanted {
                let fault = Fault::unsupported(given, &[wanted]);
                return Err(ConfigErrors(vec![refuse(field, fault)]));
            }
        }
        let mut faults = Faults::default();
        shape::check(value, &shape::CONFIGURATION, "", &mut faults);
        faults.end(())?;
        let document = shape::typed(value, "").map_err(|error| ConfigErrors(vec![error]));
        let document: Document = document?;
        let mut faults = Faults::default();
        document.check(&mut faults);
        let mut profiles = Vec::new();
        let mut names = BTreeSet::new();
        let alone = document.profiles.len() <= 1;
        for (index, body) in document.profiles.into_iter().enumerate() {
            let path = format!("profiles[{index}]");
            let profile = body.read(&path, alone, &mut faults);
            let name = &profile.scheduler_name;
            // A profile without a name was already refused.
            if !name.is_empty() && !names.insert(name.clone()) {
                let path = format!("{path}.schedulerName");
                faults.refuse(path, Fault::Duplicate(name.clone()));
            }
            profiles.push(profile);
        }
        if profiles.is_empty() {
            profiles.push(Profile::default());
        }
        faults.end(Config {
            profiles,
            backoff: Backoff {
                initial_seconds: document.pod_initial_backoff_seconds,
                max_seconds: document.pod_max_backoff_seconds,
            },
        })
    }
}

impl Document {
    fn check(&self, faults: &mut Faults) {
        let mut invalid = |path: &str, value: i64, why: &str| {
            faults.refuse(path, Fault::invalid(value, why));
        };
        if self.parallelism <= 0 {
            let why = "should be an integer value greater than zero";
            invalid("parallelism", self.parallelism, why);
        }
        if self.pod_initial_backoff_seconds <= 0 {
            let (path, value) = ("podInitialBackoffSeconds", self.pod_initial_backoff_seconds);
            invalid(path, value, "must be greater than 0");
        }
        if self.pod_max_backoff_seconds < self.pod_initial_backoff_seconds {
            let why = "must be greater than or equal to PodInitialBackoffSeconds";
            invalid("podMaxBackoffSeconds", self.pod_max_backoff_seconds, why);
        }
        percentage("", self.percentage_of_nodes_to_score, faults);
        if !self.extenders.is_empty() {
            let why = "extenders are not called by this scheduler";
            faults.refuse("extenders", Fault::Forbidden(why.to_owned()));
        }
    }
}

fn percentage(path: &str, given: Option<i64>, faults: &mut Faults) {
    if let Some(value) = given.filter(|value| !(0..=100).contains(value)) {
        let path = format!("{path}percentageOfNodesToScore");
        faults.refuse(path, Fault::invalid(value, "not in valid range [0-100]"));
    }
}

impl ProfileBody {
    fn read(self, path: &str, alone: bool, faults: &mut Faults) -> Profile {
        let scheduler_name = match self.scheduler_name {
            // Only a single profile may omit its name.
            name if name.is_empty() && alone => DEFAULT_SCHEDULER.to_owned(),
            name => name,
        };
        if scheduler_name.is_empty() {
            let path = format!("{path}.schedulerName");
            faults.refuse(path, Fault::Required(String::new()));
        }
        percentage(
            &format!("{path}."),
            self.percentage_of_nodes_to_score,
            faults,
        );
        let mut profile = Profile {
            scheduler_name,
            ..Profile::default()
        };
        self.plugins
            .apply(&mut profile, &format!("{path}.plugins"), faults);
        let mut seen = BTreeSet::new();
        for (index, own) in self.plugin_config.into_iter().enumerate() {
            let path = format!("{path}.pluginConfig[{index}]");
            if !seen.insert(own.name.clone()) {
                faults.refuse(path, Fault::Duplicate(own.name));
                continue;
            }
            own.apply(&mut profile, &path, faults);
        }
        profile
    }
}

#[cfg(test)]
mod tests;
