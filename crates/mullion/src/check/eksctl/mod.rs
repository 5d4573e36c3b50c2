//! Judges a ClusterConfig by the validation of eksctl 0.231 (`pkg/apis/eksctl.io/v1alpha5/validation.go` and the loader of its commands).
//!
//! A rule about the values of some fields is a [`row::Row`] of a table: [`cluster`] has those of the cluster, [`groups`] those of node groups.
//! What compares values, or needs a parser, is code in [`across`]. eksctl stops at its first error, while all of them are returned here. Fields
//! that eksctl does not have and values of another type are not judged: they have findings already.

mod across;
mod addons;
mod cluster;
mod groups;
mod row;

use serde_json::Value;

use super::path::Path;
pub(super) use cluster::REGIONS;

/// Why eksctl refuses a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    /// The place of the field, or of the innermost field around it that the file has.
    pub(super) at: Path,
    /// eksctl's message.
    pub(super) words: String,
}

impl Refusal {
    /// Returns the command that refuses the file. Profiles of Fargate are validated by the command that creates them alone: `create cluster`
    /// leaves them to EKS, which refuses them when the cluster is there.
    pub(super) fn command(&self) -> &'static str {
        const PROFILES: &str = "fargateProfiles[";
        if self.at.to_string().starts_with(PROFILES) {
            "eksctl create fargateprofile"
        } else {
            "eksctl"
        }
    }
}

/// Returns the reasons for which eksctl refuses a ClusterConfig.
pub(super) fn refusals(config: &Value) -> Vec<Refusal> {
    let rows = [cluster::ROWS, groups::ROWS].into_iter().flatten();
    let mut refusals: Vec<_> = rows.flat_map(|row| row.refusals(config)).collect();
    refusals.extend(across::refusals(config));
    addons::refusals(config, &mut refusals);
    refusals
}

/// Returns the minor version of Kubernetes that a ClusterConfig names.
fn minor(config: &Value) -> Option<u64> {
    let version = config["metadata"]["version"].as_str()?;
    version.strip_prefix("1.")?.parse().ok()
}

#[cfg(test)]
mod tests;
