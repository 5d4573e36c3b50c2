//! eksctl's ClusterConfig (`eksctl.io/v1alpha5`), which is parsed once into a [`Cluster`].
//!
//! Invariant: a [`Cluster`] is valid. Unknown or invalid fields are refused with their path, the allowed values and, if there is one, the
//! remedy. Fields of eksctl that a simulation does not need are accepted and listed once in [`Cluster::ignored`].

pub mod fields;
mod group;
mod reader;
mod taints;

use std::{collections::BTreeMap, fmt};

use serde_json::Value;

use crate::ami::{AmiFamily, WindowsRelease};
use reader::Field;
use serde::{Deserialize, Serialize};

pub use group::{DEFAULT_INSTANCE_TYPE, NodeGroup};
pub use taints::{Taint, TaintEffect};

/// Oldest minor version of Kubernetes that is accepted.
pub const OLDEST_MINOR: u32 = 23;
/// Newest minor version of Kubernetes that is accepted, and the default.
pub const NEWEST_MINOR: u32 = 36;

/// A cluster to be simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Name of the cluster.
    pub name: String,
    /// Region, for example `us-west-2`.
    pub region: String,
    /// Kubernetes version of nodes.
    pub version: KubernetesVersion,
    /// Tags of everything launched.
    pub tags: BTreeMap<String, String>,
    /// Zones nodes may be in; empty means the region's first three.
    pub availability_zones: Vec<String>,
    /// Managed and unmanaged groups, in the file's order, unmanaged first.
    pub node_groups: Vec<NodeGroup>,
    /// IAM roles that the ConfigMap aws-auth maps to users and groups.
    pub identity_mappings: Vec<IdentityMapping>,
    /// Paths of fields that were accepted and have no effect.
    pub ignored: Vec<String>,
}

/// An item of `iamIdentityMappings`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityMapping {
    /// ARN of the role.
    pub arn: String,
    /// Name of the user; may have placeholders such as `{{EC2PrivateDNSName}}`.
    pub username: String,
    /// Groups of the user.
    pub groups: Vec<String>,
}

/// Minor version of Kubernetes 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KubernetesVersion {
    minor: u32,
}

impl KubernetesVersion {
    /// The newest version known.
    pub const NEWEST: Self = Self {
        minor: NEWEST_MINOR,
    };

    /// Returns the version `1.minor`, if it is accepted.
    pub fn from_minor(minor: u32) -> Option<Self> {
        (OLDEST_MINOR..=NEWEST_MINOR)
            .contains(&minor)
            .then_some(Self { minor })
    }

    /// Returns the minor number.
    pub fn minor(self) -> u32 {
        self.minor
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.minor)
    }
}

/// An error in a file: its place, its cause, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Path of the field, for example `nodeGroups[0].taints.os`; empty for the file as a whole.
    pub path: String,
    /// What is wrong, and what is allowed.
    pub message: String,
    /// An example of a valid value, or the next step.
    pub hint: Option<String>,
}

impl ConfigError {
    /// Creates an error without a hint.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
            hint: None,
        }
    }

    /// Adds a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

impl std::error::Error for ConfigError {}

/// Fields of the file that a simulation does not need.
const IGNORED_TOP: &[&str] = &[
    "accessConfig",
    "addons",
    "addonsConfig",
    "autoModeConfig",
    "autoScalingGroup",
    "autoZonalShiftConfig",
    "cloudWatch",
    "fargateProfiles",
    "git",
    "gitops",
    "iam",
    "identityProviders",
    "karpenter",
    "kubernetesNetworkConfig",
    "localZones",
    "outpost",
    "privateCluster",
    "remoteNetworkConfig",
    "secretsEncryption",
    "upgradePolicy",
    "vpc",
    "zonalShiftConfig",
];

impl Cluster {
    /// Parses a ClusterConfig.
    ///
    /// # Errors
    /// [`ConfigError`] for the first mistake.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let value = only_document(text)?;
        let root = Field::root(&value);
        let mut ignored = Vec::new();
        let mut cluster = Self::head(&root, &mut ignored)?;
        for (field, managed) in group_fields(&root)? {
            let group = cluster.group(&field, managed, &mut ignored)?;
            cluster.node_groups.push(group);
        }
        // Twenty groups with the same ignored field are reported as one path.
        cluster.ignored = once_each(ignored);
        Ok(cluster)
    }

    /// Returns the mistakes for which [`Cluster::from_yaml`] refuses a ClusterConfig: the first one of its head, or else the first one of each
    /// group.
    pub fn mistakes(config: &Value) -> Vec<ConfigError> {
        let root = Field::root(config);
        let head = Self::head(&root, &mut Vec::new());
        let (mut cluster, groups) = match head.and_then(|head| Ok((head, group_fields(&root)?))) {
            Ok(read) => read,
            Err(mistake) => return vec![mistake],
        };
        let mut mistakes = Vec::new();
        for (field, managed) in groups {
            match cluster.group(&field, managed, &mut Vec::new()) {
                Ok(group) => cluster.node_groups.push(group),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        mistakes
    }

    /// Reads everything but the node groups.
    fn head(root: &Field<'_>, ignored: &mut Vec<String>) -> Result<Self, ConfigError> {
        root.check_kind()?;
        root.check_fields(
            &[
                "apiVersion",
                "kind",
                "metadata",
                "availabilityZones",
                "nodeGroups",
                "managedNodeGroups",
                "iamIdentityMappings",
            ],
            IGNORED_TOP,
            ignored,
        )?;
        let metadata = root.required("metadata")?;
        metadata.check_fields(
            &["name", "region", "version", "tags"],
            &["annotations", "accountID"],
            ignored,
        )?;
        let region = metadata.required("region")?.region()?;
        let version = match metadata.get("version") {
            Some(field) => version(&field)?,
            None => KubernetesVersion::NEWEST,
        };
        Ok(Self {
            name: metadata.required("name")?.cluster_name()?,
            version,
            tags: metadata.string_map("tags")?,
            availability_zones: root.zones("availabilityZones", &region)?,
            region,
            node_groups: Vec::new(),
            identity_mappings: identity_mappings(root.value()),
            ignored: Vec::new(),
        })
    }

    /// Reads a node group, whose name no group before it has.
    fn group(
        &self,
        field: &Field<'_>,
        managed: bool,
        ignored: &mut Vec<String>,
    ) -> Result<NodeGroup, ConfigError> {
        let group = NodeGroup::read(field, managed, self, ignored)?;
        match self.node_groups.iter().find(|own| own.name == group.name) {
            None => Ok(group),
            Some(twin) => Err(ConfigError::new(
                format!("{}.name", group.path),
                format!("{:?} is the name of {} already", group.name, twin.path),
            )
            .hint("names of node groups are unique in a cluster")),
        }
    }

    /// Returns whether any group runs Windows.
    pub fn has_windows(&self) -> bool {
        self.node_groups
            .iter()
            .any(|group| group.windows_release().is_some())
    }

    fn check_family(&self, path: &str, family: AmiFamily) -> Result<(), ConfigError> {
        let oldest = match family.windows_release() {
            Some(WindowsRelease::V2025) => 35,
            _ => OLDEST_MINOR,
        };
        if self.version.minor >= oldest {
            return Ok(());
        }
        Err(ConfigError::new(
            path,
            format!(
                "{family} needs Kubernetes 1.{oldest} or newer, metadata.version is {}",
                self.version
            ),
        )
        .hint(format!("metadata.version: \"1.{oldest}\"")))
    }
}

/// Returns the node groups, and whether EKS manages each.
fn group_fields<'f>(root: &Field<'f>) -> Result<Vec<(Field<'f>, bool)>, ConfigError> {
    let mut groups = Vec::new();
    for (list, managed) in [("nodeGroups", false), ("managedNodeGroups", true)] {
        let items = root.items(list)?.into_iter();
        groups.extend(items.map(|field| (field, managed)));
    }
    Ok(groups)
}

/// Parses the mappings of roles. Those of users and accounts, and those that eksctl would refuse, are left out.
fn identity_mappings(document: &Value) -> Vec<IdentityMapping> {
    let items = document["iamIdentityMappings"].as_array();
    let text = |item: &Value, key: &str| item[key].as_str().unwrap_or_default().to_owned();
    items
        .into_iter()
        .flatten()
        // The ARN of a user has `:user/` here, and a mapping of an account has no ARN at all.
        .filter(|item| {
            item["arn"]
                .as_str()
                .is_some_and(|arn| arn.contains(":role/"))
        })
        .map(|item| IdentityMapping {
            arn: text(item, "arn"),
            username: text(item, "username"),
            groups: item["groups"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        })
        .collect()
}

fn version(field: &Field<'_>) -> Result<KubernetesVersion, ConfigError> {
    let (text, shown) = match field.value() {
        Value::Number(number) => (number.to_string(), format!("the number {number}")),
        _ => {
            let text = field.string()?;
            (text.clone(), format!("{text:?}"))
        }
    };
    if matches!(text.as_str(), "latest" | "auto" | "default") {
        return Ok(KubernetesVersion::NEWEST);
    }
    read_version(&text).ok_or_else(|| {
        let error = field.error(format!(
            "{shown} is not one of 1.{OLDEST_MINOR} to 1.{NEWEST_MINOR}"
        ));
        // YAML parses an unquoted 1.30 as the number 1.3.
        match read_version(&format!("{text}0")) {
            Some(meant) if field.value().is_number() => error.hint(format!(
                "version: \"{meant}\", in quotes: without them {meant} is the number {text}"
            )),
            _ => error.hint(format!("version: \"1.{NEWEST_MINOR}\"")),
        }
    })
}

fn read_version(text: &str) -> Option<KubernetesVersion> {
    let minor = text.strip_prefix("1.")?.parse().ok()?;
    KubernetesVersion::from_minor(minor)
}

/// Replaces list indices by `[]`, and removes repeated paths.
fn once_each(paths: Vec<String>) -> Vec<String> {
    let mut seen = Vec::new();
    for path in paths {
        let mut short = String::with_capacity(path.len());
        let mut inside = false;
        for c in path.chars() {
            inside = inside && c != ']';
            if !inside {
                short.push(c);
            }
            inside = inside || c == '[';
        }
        if !seen.contains(&short) {
            seen.push(short);
        }
    }
    seen
}

/// Returns the only document of a file; empty documents do not count.
fn only_document(text: &str) -> Result<Value, ConfigError> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
        ConfigError::new("", format!("not a YAML document: {}", one_line(&error)))
            .hint("mend the YAML there")
    })?;
    let mut documents: Vec<Value> = documents.into_iter().filter(|d| !d.is_null()).collect();
    let is_other = |own: &Value| {
        let version = own["apiVersion"].as_str().unwrap_or_default();
        own["kind"].is_string() && !version.starts_with("eksctl.io/")
    };
    if documents.len() > 1 && documents.iter().all(is_other) {
        let count = documents.len();
        let text = format!("the file holds {count} documents, none of which is a ClusterConfig");
        return Err(ConfigError::new("", text).hint(reader::MANIFESTS));
    }
    match (documents.pop(), documents.len()) {
        (Some(only), 0) => Ok(only),
        (None, _) => Err(ConfigError::new("", "the file is empty")),
        (Some(_), others) => Err(ConfigError::new(
            "",
            format!("the file holds {} documents, a config is one", others + 1),
        )
        .hint("keep the ClusterConfig alone in a file; kubectl apply -f takes the others")),
    }
}

fn one_line(error: &dyn fmt::Display) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}
