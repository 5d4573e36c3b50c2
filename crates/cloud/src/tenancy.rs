//! Tenancy: whether an instance shares its host with instances of other accounts.

use mullion_api::labels;
use serde::{Deserialize, Serialize};

/// Whether an instance shares its host with instances of other accounts (label `karpenter.k8s.aws/instance-tenancy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tenancy {
    /// It may share the host.
    #[default]
    Default,
    /// It runs on hardware of its own account (EC2: Dedicated Instance).
    Dedicated,
}

impl Tenancy {
    /// Both values; a launch that may have either gets the first (AWS provider: `getTenancyType`).
    pub const ALL: [Tenancy; 2] = [Tenancy::Default, Tenancy::Dedicated];

    /// Returns EC2's name, which is also the label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Dedicated => "dedicated",
        }
    }

    /// Returns the label that a node of this tenancy has, key and value.
    pub fn label(self) -> (&'static str, &'static str) {
        (labels::INSTANCE_TENANCY, self.as_str())
    }

    /// Parses EC2's name. `None` for the tenancy `host` and for unknown names.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|own| own.as_str() == text)
    }
}
